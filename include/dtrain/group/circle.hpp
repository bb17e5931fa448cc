#pragma once
/// @file
/// group::Circle: the ranks of one group, and what this rank has of its own among them.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/throw_if_failed.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/group/job.hpp"
#include "dtrain/group/options.hpp"
#include "dtrain/group/passage.hpp"
#include "dtrain/rendezvous/delete_off_loop.hpp"
#include "dtrain/rendezvous/rank_set.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Shared by the handles of one group. Its end closes the group's channel; the job ends with its last circle. Where an
/// exception unwinds, the channel stays with the job: the peers are to end with that exception's text, and not because
/// this rank's channel closed. Threads: collectives from one at a time; the rest from any.
template <backend::Backend Backend>
class Circle final : private Job::Closable {
 public:
  using Communicator = typename Backend::Communicator;
  using StreamOwner = typename Backend::StreamOwner;

  /// Collective, blocking: all ranks of the job.
  static std::shared_ptr<Circle> whole(std::shared_ptr<Job> job, const GroupOptions& options) {
    rendezvous::Membership members = job->participant.membership();
    std::shared_ptr<Circle> circle = make(std::move(job), std::move(members), "", options);
    circle->ends_->communicator.emplace(circle->open("group", options.accumulate));
    return circle;
  }

  Circle(const Circle&) = delete;
  Circle& operator=(const Circle&) = delete;
  ~Circle() {
    job_->remove(*this);
    if (std::uncaught_exceptions() > exceptions_) {
      job_->outlive(std::move(ends_));
    }
  }

  const std::shared_ptr<Job>& job() const noexcept { return job_; }
  const rendezvous::Membership& members() const noexcept { return members_; }
  bool is_whole() const noexcept { return prefix_.empty(); }
  auto stream() const { return ends_->stream.ref(); }
  const Passage<typename Communicator::Stream>& passage() const noexcept { return ends_->passage; }

  /// @throws Error (closed) after the rank has left; Error (invalid_argument) on the control thread.
  Communicator& live() {
    job_->require_may_block();
    require_open();
    return *ends_->communicator;
  }

  /// Blocking: until what was enqueued before `event` has ended. @throws the job's first cause; Error (timeout)
  void wait(typename Communicator::Stream::Event& event) {
    backend::block_until_complete(event, live(), *job_->participant.failure(), job_->timeout, members_.rank_in_job());
  }

  /// The same on the control loop, which it leaves free meanwhile. Lifetime: the event outlives the wait.
  async::Task<void> completion(const typename Communicator::Stream::Event& event) {
    async::EventLoop& loop = job_->tasks.loop();
    const std::shared_ptr<Ends> ends = require_open();
    const std::shared_ptr<FailureLatch> failure = job_->participant.failure();
    std::chrono::microseconds pause(100);
    std::uint64_t progress = 0;
    for (Deadline stalled = Deadline::after(2 * job_->timeout); !event.is_complete();) {
      job_->streams->run_what_nobody_runs();
      co_await loop.sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(2000));
      if (const std::uint64_t now = backend::progress_of(event, *ends->communicator); now != progress) {
        progress = now;
        stalled = Deadline::after(2 * job_->timeout);
      } else if (stalled.passed()) {
        throw Error(Errc::timeout,
                    "waiting for a collective of a stream, none of whose work ended within twice the timeout");
      }
    }
    const Deadline told = Deadline::after(std::chrono::seconds(2));  // which cause came first, the store says
    while (ends->communicator && ends->communicator->failure() && !failure->failed() && !told.passed()) {
      co_await loop.sleep_for(std::chrono::milliseconds(1));
    }
    failure->throw_if_failed(members_.rank_in_job());
    if (const std::optional<Cause> own = ends->communicator ? ends->communicator->failure() : std::nullopt) {
      throw_cause(*own);
    }
  }

  /// The job's, with the group's prefix before every key, and barriers of the group's ranks.
  rendezvous::Store store() const {
    rendezvous::Store store = job_->participant.store().with_timeout(job_->timeout);
    return is_whole() ? store : store.with_prefix(prefix_).with_parties(parties_);
  }

  /// 1, 2, ... for each purpose.
  int next_number(const std::string& purpose) {
    const std::lock_guard lock(numbers_mutex_);
    return ++numbers_[purpose];
  }

  /// Collective, blocking: a channel of its own for the ranks of this circle. @param accumulate f32: also where the
  /// group's is not
  Communicator open_channel(const std::string& purpose, Accumulate accumulate,
                            const backend::DescribeOperation& describe) {
    job_->require_may_block();
    return open(purpose + "-" + std::to_string(channels_opened_.fetch_add(1)),
                std::max(accumulate, options_.accumulate), describe);
  }

  /// Collective, blocking: a circle of the ranks that give the same color, ordered by key, then by rank.
  std::shared_ptr<Circle> split_blocking(int color, int key) {
    if (color < 0) {
      throw Error(Errc::invalid_argument, "splitting a process group with color " + std::to_string(color) +
                                              "; every rank gives a color of at least 0");
    }
    Communicator& whole = live();
    job_->streams->run_what_nobody_runs();  // other ranks may wait for it before they come here
    Communicator part = told([&] { return whole.split_blocking(color, key, Deadline::after(job_->timeout)); });
    rendezvous::Membership members = part.members();
    std::string prefix = prefix_ + "split-" + std::to_string(splits_++) + "-" + std::to_string(color) + "/";
    std::shared_ptr<Circle> circle = make(job_, std::move(members), std::move(prefix), options_);
    circle->ends_->communicator.emplace(std::move(part));
    return circle;
  }

  /// A stream of this rank: where the rank is stalled in another one, its work is run in the background.
  StreamOwner open_stream() const {
    StreamOwner stream;
    enlist(stream);
    return stream;
  }

  /// Later collectives are refused, and peers that wait in one are told. Not while one runs.
  void close() noexcept override { ends_->communicator.reset(); }

  rendezvous::ControlTasks& tasks;  ///< the job's; for DeleteOffLoop

 private:
  struct Ends;

  const std::shared_ptr<Ends>& require_open() const {
    if (!ends_->communicator) {
      throw Error(Errc::closed, "a collective was called on a process group that this rank has left");
    }
    return ends_;
  }

  /// What an exception leaves with the job. The communicator goes before its stream.
  struct Ends {
    StreamOwner stream;
    Passage<typename Communicator::Stream> passage;
    std::optional<Communicator> communicator;  ///< nothing once this rank has left
  };

  Circle(std::shared_ptr<Job> job, rendezvous::Membership members, std::string prefix, const GroupOptions& options)
      : tasks(job->tasks),
        job_(std::move(job)),
        members_(std::move(members)),
        prefix_(std::move(prefix)),
        parties_(is_whole()
                     ? nullptr
                     : std::make_shared<const rendezvous::RankSet>(rendezvous::RankSet::of(members_.ranks_in_job()))),
        options_(options),
        ends_(std::make_shared<Ends>()) {
    enlist(ends_->stream);
    static_cast<void>(ends_->stream.ref());  // on this thread's device, if streams have one
    job_->add(*this);
  }

  static std::shared_ptr<Circle> make(std::shared_ptr<Job> job, rendezvous::Membership members, std::string prefix,
                                      const GroupOptions& options) {
    return {new Circle(std::move(job), std::move(members), std::move(prefix), options), rendezvous::DeleteOffLoop()};
  }

  void enlist(StreamOwner& stream) const {
    if constexpr (requires { stream.enter(job_->streams); }) {
      stream.enter(job_->streams);
    }
  }

  /// What goes wrong on one rank while a channel is made is told to the job: the others would wait for this one.
  /// Blocking: 2 s at most beyond `make`. @throws the job's first cause
  template <class Make>
  Communicator told(Make make) const {
    try {
      return make();
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      const std::shared_ptr<FailureLatch>& failure = job_->participant.failure();
      const int self = members_.rank_in_job();
      failure->report({CauseKind::exception, self, members_.host, error.what()});
      failure->block_until_failed(Deadline::after(std::chrono::seconds(2)));
      failure->throw_if_failed(self);
      throw;
    }
  }

  Communicator open(const std::string& purpose, Accumulate accumulate,
                    const backend::DescribeOperation& describe = {}) const {
    const std::string name = prefix_ + purpose;
    job_->streams->run_what_nobody_runs();  // other ranks may wait for it before they come here
    const backend::ChannelContext context{members_,
                                          name,
                                          job_->participant.store().with_prefix(name + "/"),
                                          job_->participant.failure(),
                                          job_->timeout,
                                          [streams = job_->streams] { streams->run_what_nobody_runs(); },
                                          describe,
                                          accumulate};
    return Backend::open_blocking(context, Deadline::after(job_->timeout));
  }

  std::shared_ptr<Job> job_;
  const rendezvous::Membership members_;
  const std::string prefix_;                                  ///< of keys and channel names; empty for the whole job
  const std::shared_ptr<const rendezvous::RankSet> parties_;  ///< of the barriers of a part
  const GroupOptions options_;
  std::shared_ptr<Ends> ends_;
  std::atomic<int> channels_opened_{0};
  int splits_ = 0;
  std::mutex numbers_mutex_;
  std::map<std::string, int> numbers_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace DTRAIN_NAMESPACE::group
