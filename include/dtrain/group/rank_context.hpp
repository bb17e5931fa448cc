#pragma once
/// @file
/// RankContext: control plane, coroutines, streams and timeout that all groups of a rank share, until it leaves.
/// ShardedAttempt: whether ShardedOptimizers have their state.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/async/loop_handle.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/memory_ranges.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/group/gradient_binding_registry.hpp"
#include "dtrain/group/group_handle.hpp"
#include "dtrain/group/rank_activity.hpp"
#include "dtrain/group/stream_progress.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/control/control_plane.hpp"
#include "dtrain/rendezvous/control/task_runner.hpp"
#include "dtrain/rendezvous/formation/call_report.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"
#include "dtrain/stream/host/communication_stream.hpp"

namespace DTRAIN_NAMESPACE::group {

/// State of ShardedOptimizers in an attempt of an elastic job. Part of it is lost with each rank, and a step writes the
/// weights before it is committed: so each attempt begins with a checkpoint. Threads: the one that drives steps.
struct ShardedAttempt {
  bool needs_checkpoint = false;  ///< an optimizer has begun a step or loaded its state before this attempt
  bool has_loaded = false;        ///< load_checkpoint() has loaded an optimizer's state
  bool has_resumed = false;       ///< resume_at() was called after that
  bool has_steps = false;

  /// Before a step. @param is_loaded whether load_checkpoint() has loaded the state of the step's optimizer
  /// @throws Error (invalid_argument) if the attempt needs a checkpoint that was not loaded
  void begin_step(const char* caller, bool is_loaded);
};

/// Shared by the rank's groups. The destructor leaves the job; if an exception is unwinding the stack, the rank has
/// failed instead and the other ranks are notified. In a forked process reports and the destructor do nothing.
/// Threads: all members from any thread; leave_blocking and the destructor from one.
class RankContext {
 public:
  /// A channel of this rank. It closes when the rank leaves, so that peers are notified instead of waiting.
  class Closable {
   public:
    virtual void close() noexcept = 0;

   protected:
    ~Closable() = default;
  };

  /// Collective, blocking: joins the job. @throws as ControlPlane. @param base is destroyed after all other members
  explicit RankContext(const rendezvous::ControlPlaneOptions& options, std::shared_ptr<void> base = {});
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  ~RankContext();

  /// @throws Error (invalid_argument) in a coroutine on the control loop, in a forked process, and in commit().
  void require_may_block() const;

  /// Reports that this rank failed with `text`. Blocking: until the job has the report, 2 s at most.
  /// @param failed_rank the rank that the exception is about, if it is another one
  void report_exception(const std::string& text, std::optional<int> failed_rank = {}) noexcept;

  /// Reports after `grace`, in which a more precise cause may be reported. Blocking: no.
  void report_after(std::chrono::milliseconds grace, std::string text) noexcept;

  /// The job's store, whose blocking calls first start enqueued work of this rank's streams that no thread runs.
  rendezvous::Store store() const { return with_before_wait(control_plane.store(), before_wait_); }

  void keep_alive_until_leave(std::shared_ptr<void> work) noexcept;

  /// Sets the entries in the background, one after the other.
  WaitUntilSet set_in_background(const rendezvous::Store& store, StoreEntries entries);

  /// GroupHandle::gather_in_background, for a group with this store and these members. @param own name and text
  void gather_in_background(const rendezvous::Store& store, const rendezvous::Membership& members,
                            std::pair<std::string, std::string> own, OnTexts on_rank_0);

  /// Lifetime: `channel` is removed before it is destroyed.
  void add(Closable& channel);
  void remove(Closable& channel) noexcept;

  /// Says on rank 0 of an elastic job, once in a worker, that the program makes steps and commits none.
  void remind_of_commit() noexcept;

  void leave_blocking();

  /// Ends everything of an attempt that has failed, with the control thread, even where a handle on its groups is kept.
  /// Blocking: as the destructor. Threads: none but the control thread.
  void end_attempt() noexcept;

 private:
  const std::shared_ptr<void> base_;

 public:
  const std::chrono::nanoseconds timeout;  ///< the longest time of one collective
  const std::shared_ptr<RankActivity> activity = std::make_shared<RankActivity>();
  rendezvous::ControlPlane control_plane;
  rendezvous::TaskRunner tasks;
  const std::shared_ptr<stream::host::StreamRegistry> streams;  ///< streams of all groups and wrappers
  StreamProgress stream_progress;
  const std::shared_ptr<GradientBindingRegistry> gradient_bindings;  ///< bindings of this rank's wrappers
  /// @name Facts of an attempt of an elastic job, which the program's thread sets
  /// @{
  std::uint64_t elastic_attempt = 0;                    ///< its number; 0: the job is not elastic
  MemoryRanges kept_memory;                             ///< memory of the state that the job keeps
  bool kept_are_equal = false;                          ///< its tensors have equal values on all ranks
  bool has_newcomers = false;                           ///< some of its ranks have no part in the training yet
  bool has_reminded = false;                            ///< remind_of_commit() has said it
  bool has_loaded = false;                              ///< load_checkpoint() has given all ranks the values of a file
  bool is_torn = false;                                 ///< a commit threw: its channels stay open until the end
  std::shared_ptr<rendezvous::CallReport> call_report;  ///< null: the job is not elastic
  ShardedAttempt sharded;
  std::vector<std::weak_ptr<const WrappedModel>> wrapped;
  std::vector<std::shared_ptr<const std::atomic<bool>>> detached;  ///< ddp::DetachThread

  /// @}

 private:
  /// Blocking: until gather_in_background() has all texts, for a second at most.
  void end_gatherings_blocking() noexcept;
  void close_channels() noexcept;
  Cause exception_cause(std::string text, std::optional<int> failed_rank = {}) const;

  std::mutex mutex_;
  std::vector<Closable*> channels_;
  std::vector<std::shared_ptr<void>> kept_;              ///< destroyed before the members above, which it uses
  std::vector<async::BackgroundTask<void>> gatherings_;  ///< likewise
  const std::shared_ptr<const std::function<void()>> before_wait_;
  bool left_ = false;
  const OwningProcess process_;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

/// A backend's pre_join_blocking (backend::HasPreJoin).
using PreJoin = std::shared_ptr<void> (*)(const identity::ProcessIdentity& identity,
                                          std::optional<rendezvous::Secret>& secret, Deadline deadline);

/// Settings that must be the same on all ranks. DistributedDataParallel compares models and their options.
struct RequiredSettings {
  std::string_view launcher;
  std::string_view backend;
  std::string_view topology;
  Accumulate accumulate;
};

/// For rendezvous::first_difference: RequiredSettings, and those of the process.
std::string settings_text(const rendezvous::ControlPlaneOptions& worker, const RequiredSettings& required);

/// Collective, blocking: joins the job as the rank that `worker` describes. @param pre_join null if there is none
/// @throws as ControlPlane
std::shared_ptr<RankContext> join_job_blocking(const rendezvous::ControlPlaneOptions& worker, PreJoin pre_join,
                                               const RequiredSettings& required);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void ShardedAttempt::begin_step(const char* caller, bool is_loaded) {
  if (needs_checkpoint && !(is_loaded && has_resumed)) {
    throw_error(Errc::invalid_argument,
                "{} got a ShardedOptimizer without a checkpoint in a later attempt of an elastic job: a part of its "
                "state is lost with each rank, and the weights may be those of half a step; {}",
                {caller, is_loaded ? "call resume_at() with the checkpoint's step, after load_checkpoint()"
                                   : "load_checkpoint() with the optimizer, then call resume_at(), in each call of the "
                                     "function of train()"});
  }
  has_steps = true;
}

namespace detail {

inline async::Task<void> report_later(async::EventLoop& loop, std::chrono::milliseconds grace,
                                      std::shared_ptr<FailureLatch> latch, Cause cause) {
  co_await loop.sleep_for(grace);
  latch->report(cause);
}

inline async::Task<void> set_all(rendezvous::Store store, std::shared_ptr<const StoreEntries> entries) {
  for (const auto& [key, value] : *entries) {
    co_await store.set(key, value);
  }
}

/// Arguments of GroupHandle::gather_in_background.
struct TextsOfRanks {
  rendezvous::Store store;
  int rank;
  int world_size;
  std::string name;
  std::string text;
  OnTexts on_rank_0;
};

inline async::Task<void> gather(std::shared_ptr<const TextsOfRanks> of) {
  const auto key_of = [&of](int rank) { return format_text("{}/{}", {of->name, rank}); };
  co_await of->store.set(key_of(of->rank), of->text);  // rank 0 too: a rank may look whether it has called this
  if (of->rank == 0) {
    std::vector<std::string> texts{of->text};
    for (int rank = 1; rank < of->world_size; ++rank) {
      std::string text = co_await of->store.take(key_of(rank), 1);
      texts.push_back(std::move(text));
    }
    co_await of->store.erase(key_of(0));
    of->on_rank_0(texts);
  }
}

}  // namespace detail

DTRAIN_DEFINED RankContext::RankContext(const rendezvous::ControlPlaneOptions& options, std::shared_ptr<void> base)
    : base_(std::move(base)),
      timeout(options.timeout),
      control_plane(options),
      tasks(control_plane.control_thread(), control_plane.failure(), control_plane.membership().rank),
      streams(std::make_shared<stream::host::StreamRegistry>()),
      stream_progress(streams, tasks, control_plane.membership().local_world_size),
      gradient_bindings(std::make_shared<GradientBindingRegistry>()),
      before_wait_(std::make_shared<const std::function<void()>>([of = streams] { of->run_unattended(); })) {
  control_plane.send_statuses([of = activity] { return of->status(); });
}

DTRAIN_DEFINED RankContext::~RankContext() {
  if (left_) {
    return;
  }
  try {
    if (std::uncaught_exceptions() > exceptions_at_start_) {
      report_exception("an exception ended the process group");
    } else if (!control_plane.failure()->failed()) {
      leave_blocking();
    }
  } catch (...) {
    // The other ranks detect the closed connection.
  }
}

DTRAIN_DEFINED void RankContext::keep_alive_until_leave(std::shared_ptr<void> work) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    kept_.push_back(std::move(work));
  } catch (...) {
    // Then `work` is destroyed now; the other ranks may get a less precise cause.
  }
}

DTRAIN_DEFINED void RankContext::add(Closable& channel) {
  const std::lock_guard lock(mutex_);
  channels_.push_back(&channel);
}

DTRAIN_DEFINED void RankContext::remove(Closable& channel) noexcept {
  const std::lock_guard lock(mutex_);
  channels_.erase(std::remove(channels_.begin(), channels_.end(), &channel), channels_.end());
}

DTRAIN_DEFINED void RankContext::require_may_block() const {
  if (!process_.is_current()) {
    throw_error(Errc::invalid_argument,
                "a process that rank {} forked called its process group; the group is of the process that joined the "
                "job; let the child compute without it, and end with _exit or exec",
                {control_plane.membership().rank});
  }
  tasks.handle().require_allowed();
  if (tasks.on_loop_thread()) {
    throw_error(Errc::invalid_argument,
                "a collective or a call that blocks was made in a coroutine on the control loop, where it would wait "
                "for itself; make it on a thread of the program: enqueue the collective there, with a stream, and "
                "co_await its Work in the coroutine");
  }
  if (call_report) call_report->on_call();
}

DTRAIN_DEFINED void RankContext::report_exception(const std::string& text, std::optional<int> failed_rank) noexcept {
  if (!process_.is_current()) {
    return;
  }
  try {
    activity->enter(rendezvous::RankPhase::unwinding);
    control_plane.failure()->report(exception_cause(text, failed_rank));
    if (!tasks.on_loop_thread()) {
      control_plane.failure()->block_until_failed(Deadline::after(std::chrono::seconds(2)));
    }
  } catch (...) {
    // The other ranks detect the closed connection.
  }
}

DTRAIN_DEFINED void RankContext::report_after(std::chrono::milliseconds grace, std::string text) noexcept {
  if (!process_.is_current()) {
    return;
  }
  try {
    async::EventLoop& loop = control_plane.control_thread().loop();
    loop.post([&loop, grace, latch = control_plane.failure(), cause = exception_cause(std::move(text))] {
      loop.spawn_detached(detail::report_later(loop, grace, latch, cause));
    });
  } catch (...) {
    // The other ranks notice when this rank leaves without having taken part.
  }
}

DTRAIN_DEFINED WaitUntilSet RankContext::set_in_background(const rendezvous::Store& store, StoreEntries entries) {
  const auto shared = std::make_shared<const StoreEntries>(std::move(entries));
  auto make = [store, shared] { return detail::set_all(store, shared); };
  const auto setting = std::make_shared<async::BackgroundTask<void>>(tasks.start(std::move(make)));
  return [setting](Deadline deadline) { setting->wait(deadline); };
}

DTRAIN_DEFINED void RankContext::gather_in_background(const rendezvous::Store& store,
                                                      const rendezvous::Membership& members,
                                                      std::pair<std::string, std::string> own, OnTexts on_rank_0) {
  const auto gathering = std::make_shared<const detail::TextsOfRanks>(detail::TextsOfRanks{
      store, members.rank, members.world_size, std::move(own.first), std::move(own.second), std::move(on_rank_0)});
  async::BackgroundTask<void> started = tasks.start([gathering] { return detail::gather(gathering); });
  const std::lock_guard lock(mutex_);
  std::erase_if(gatherings_, [](const async::BackgroundTask<void>& each) { return each.done(); });
  gatherings_.push_back(std::move(started));
}

DTRAIN_DEFINED void RankContext::end_gatherings_blocking() noexcept {
  std::vector<async::BackgroundTask<void>> last;
  {
    const std::lock_guard lock(mutex_);
    last.swap(gatherings_);
  }
  const Deadline deadline = Deadline::after(std::chrono::seconds(1));
  for (async::BackgroundTask<void>& each : last) {
    try {
      each.wait(deadline);
    } catch (...) {
      // Another rank has not called gather_in_background() yet: nobody needs the texts.
    }
  }
}

DTRAIN_DEFINED void RankContext::remind_of_commit() noexcept {
  if (elastic_attempt == 0 || control_plane.membership().rank != 0 || std::exchange(has_reminded, true)) return;
  try {
    log(LogLevel::warning,
        "rank 0: no step is committed: the loss of a rank will take back all steps, because only commit() of the "
        "elastic job counts them; call it after each step, with what the step writes: job.commit([&] { "
        "optimizer.step(); })");
  } catch (...) {
    // There is no memory for the line.
  }
}

DTRAIN_DEFINED void RankContext::leave_blocking() {
  end_gatherings_blocking();
  close_channels();
  control_plane.leave_blocking(Deadline::after(timeout));
}

DTRAIN_DEFINED void RankContext::end_attempt() noexcept {
  close_channels();
  control_plane.end();
}

DTRAIN_DEFINED void RankContext::close_channels() noexcept {
  left_ = true;
  tasks.close_blocking();
  std::vector<std::shared_ptr<void>> kept;
  {
    const std::lock_guard lock(mutex_);
    for (Closable* channel : channels_) {
      channel->close();
    }
    kept.swap(kept_);
  }
  kept.clear();  // peers that wait in one of these channels are notified as well
}

DTRAIN_DEFINED Cause RankContext::exception_cause(std::string text, std::optional<int> failed_rank) const {
  const rendezvous::Membership& self = control_plane.membership();
  if (failed_rank && *failed_rank != self.rank) {
    return {CauseKind::exception, *failed_rank, {}, std::move(text)};  // the text may name its host
  }
  return {CauseKind::exception, self.rank, self.host, std::move(text)};
}

DTRAIN_DEFINED std::string settings_text(const rendezvous::ControlPlaneOptions& worker,
                                         const RequiredSettings& required) {
  return format_text("launcher={}\nbackend={}\ntopology={}\nDTRAIN_TIMEOUT_SECONDS={}\nGroupOptions::accumulate={}\n",
                     {required.launcher, required.backend, required.topology,
                      std::chrono::duration<double>(worker.timeout).count(), name(required.accumulate)});
}

DTRAIN_DEFINED std::shared_ptr<RankContext> join_job_blocking(const rendezvous::ControlPlaneOptions& worker,
                                                              PreJoin pre_join, const RequiredSettings& required) {
  rendezvous::ControlPlaneOptions self = worker;
  std::shared_ptr<void> base;
  if (pre_join != nullptr) {
    base = pre_join(self.identity, self.secret, Deadline::after(self.timeout));
  }
  self.settings = settings_text(self, required);
  return {new RankContext(self, std::move(base)), rendezvous::OffThreadDeleter()};
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::group
