#pragma once
/// @file
/// GroupState: this rank's channel and stream in one process group.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/block_until_complete.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/group/collectives/device_bounce_buffer.hpp"
#include "dtrain/group/collectives/scratch_memory.hpp"
#include "dtrain/group/group_handle.hpp"
#include "dtrain/group/group_options.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/control/task_runner.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/stream/host/communication_stream.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::group {

template <class P>
RequiredSettings required_settings(const GroupOptions& options) {
  return {P::Launcher::name(), P::Backend::name(), P::Topology::name(), options.accumulate};
}

/// The part of a GroupState that is compiled once. Threads: as GroupState.
class GroupStateBase : public RankContext::Closable,
                       public GroupHandle,
                       public std::enable_shared_from_this<GroupStateBase> {
 public:
  GroupStateBase(const GroupStateBase&) = delete;
  GroupStateBase& operator=(const GroupStateBase&) = delete;

  std::shared_ptr<const GroupHandle> handle() const { return shared_from_this(); }
  const std::shared_ptr<RankContext>& rank_context() const noexcept { return rank_context_; }
  const std::shared_ptr<GradientBindingRegistry>& gradient_bindings() const noexcept {
    return rank_context_->gradient_bindings;
  }
  const rendezvous::Membership& members() const noexcept final { return members_; }
  bool has_all_ranks() const noexcept { return prefix_.empty(); }

  std::chrono::nanoseconds timeout() const noexcept final { return rank_context_->timeout; }
  const std::shared_ptr<FailureLatch>& failure() const noexcept final { return rank_context_->control_plane.failure(); }
  void report_abandoned_step(bool unwinding) const noexcept final;
  backend::StoreRef store_ref() const final { return own_store(); }
  WaitUntilSet set_in_background(StoreEntries entries) const final;
  void gather_in_background(std::string name, std::string text, OnTexts on_rank_0) const final {
    rank_context_->gather_in_background(own_store(), members_, {std::move(name), std::move(text)},
                                        std::move(on_rank_0));
  }
  void barrier_blocking(const std::string& name, const std::string& doing, Deadline deadline) const final {
    with_call_purpose(store(), doing).barrier(name, deadline).wait();
  }
  std::uint64_t elastic_attempt() const noexcept final { return rank_context_->elastic_attempt; }
  std::shared_ptr<RankActivity> activity() const final { return rank_context_->activity; }
  bool has_newcomers() const noexcept final { return rank_context_->has_newcomers; }
  bool is_equal_on_all_ranks(const TensorView& tensor) const noexcept final {
    return rank_context_->kept_are_equal && is_kept(tensor);
  }
  bool is_kept(const TensorView& tensor) const noexcept final { return rank_context_->kept_memory.contains(tensor); }
  void add_wrapped(std::shared_ptr<const WrappedModel> model) const final {
    if (model->weights_differ) rank_context_->kept_are_equal = false;  // steps without a commit may follow
    rank_context_->wrapped.push_back(std::move(model));
  }
  /// The job's store, with the group's prefix and barriers of its ranks; own_store(): for calls of dtrain's own.
  rendezvous::Store store() const;
  rendezvous::Store own_store() const { return with_call_purpose(store(), "comparing what the ranks do"); }

  int next_number(const std::string& purpose) const final;
  void require_may_block() const final { rank_context_->require_may_block(); }

  /// Starts enqueued work of this rank's streams that no thread runs, before waits outside the store. Blocking: no.
  void run_unattended() const noexcept { rank_context_->streams->run_unattended(); }

  rendezvous::TaskRunner& tasks;  ///< the rank's; for OffThreadDeleter

 protected:
  GroupStateBase(std::shared_ptr<RankContext> rank_context, rendezvous::Membership members, std::string prefix,
                 const GroupOptions& options);
  ~GroupStateBase() = default;

  /// Whether an exception unwinds that did not unwind yet when the group was made, or one of commit() was caught.
  bool unwinds() const noexcept { return std::uncaught_exceptions() > exceptions_ || rank_context_->is_torn; }

  /// For opening a channel right away.
  backend::ChannelContext channel_context(const std::string& purpose, Accumulate accumulate,
                                          const backend::DescribeOperation& describe = {}) const;

  /// channel_context() for a further channel of the group. @param accumulate f32: even if the group's is not
  backend::ChannelContext next_channel_context(const std::string& purpose, Accumulate accumulate,
                                               const backend::DescribeOperation& describe) const;

  /// Prefix of the group that the next split with this color makes.
  std::string next_split_prefix(int color);

  /// Reports to the job the exception that is being handled, for which the other ranks would wait. Blocking: 2 s at
  /// most. @throws the job's first cause
  void report_exception() const;

  const std::shared_ptr<RankContext> rank_context_;
  const rendezvous::Membership members_;
  const GroupOptions options_;

 private:
  const std::string prefix_;  ///< the beginning of keys and channel names; empty for the group of all ranks
  const std::shared_ptr<const rendezvous::RankSet> barrier_ranks_;  ///< the ranks in a subgroup's barriers
  mutable std::atomic<int> channels_opened_{0};
  int splits_ = 0;
  mutable std::mutex numbers_mutex_;
  mutable std::vector<std::pair<std::string, int>> numbers_;  ///< the last number of each purpose
  const int exceptions_ = std::uncaught_exceptions();
};

/// Shared by the handles of one group. The destructor closes the group's channel; the rank leaves the job with its last
/// group. While an exception unwinds, the rank's RankContext keeps the channel, so that peers fail with that
/// exception's text and not because this rank's channel closed. Threads: one for collectives; any for the rest.
template <backend::Backend Backend>
class GroupState final : public GroupStateBase {
 public:
  using Communicator = typename Backend::Communicator;
  using StreamOwner = typename Backend::StreamOwner;

  /// Collective, blocking: the group of all ranks of the job.
  static std::shared_ptr<GroupState> of_all_ranks(std::shared_ptr<RankContext> rank_context,
                                                  const GroupOptions& options);

  ~GroupState();

  auto stream() const { return resources_->stream.ref(); }
  const DeviceBounceBuffer<typename Communicator::Stream>& device_bounce_buffer() const noexcept {
    return resources_->device_bounce_buffer;
  }

  /// Kept between calls, since fresh memory costs more than a short collective. Threads: the one of the collectives.
  ScratchMemory& scratch_memory() const noexcept { return resources_->scratch_memory; }

  /// For the order between this group's stream and other streams: recorded anew each time.
  auto& order() const noexcept { return resources_->order; }

  /// The open communicator. @throws Error (closed) after the rank has left, (invalid_argument) on the control thread.
  Communicator& live() const {
    rank_context_->require_may_block();
    require_open();
    return *resources_->communicator;
  }

  /// Blocking: until the work enqueued before `event` has ended. @throws the job's first cause; Error (timeout)
  void wait(typename Communicator::Stream::Event& event) const {
    backend::block_until_complete(event, live(), *failure(), rank_context_->timeout, members_.rank_in_job());
  }

  /// @throws the job's first cause, if the job or the channel has failed
  void throw_if_failed() const { backend::throw_if_failed(live(), *failure(), members_.rank_in_job()); }

  /// wait() for the control thread, which is not blocked. Lifetime: the event outlives the wait.
  async::Task<void> completion(const typename Communicator::Stream::Event& event) {
    if (!rank_context_->tasks.on_loop_thread()) {
      throw_error(
          Errc::invalid_argument,
          "a collective was awaited on another thread than the control thread; await it in a coroutine of run or "
          "spawn, or call wait()");
    }
    async::EventLoop& loop = rank_context_->tasks.loop();
    const std::shared_ptr<ChannelResources> resources = resources_;
    const std::shared_ptr<FailureLatch> latch = failure();
    std::chrono::microseconds pause(100);
    std::uint64_t progress = 0;
    for (Deadline stalled = Deadline::after(2 * rank_context_->timeout); !backend::is_complete_beside_capture(event);) {
      rank_context_->streams->run_unattended();
      co_await loop.sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(2000));
      const std::optional<std::uint64_t> now = resources->progress(event);
      if (!now && !backend::is_complete_beside_capture(event)) {
        throw_error(Errc::closed, "a collective was awaited on a process group that this rank has left");
      }
      if (now && *now != progress) {
        progress = *now;
        stalled = Deadline::after(2 * rank_context_->timeout);
      } else if (stalled.passed()) {
        backend::throw_stalled("a collective's stream", rank_context_->timeout);
      }
    }
    const Deadline first_cause_due = Deadline::after(std::chrono::seconds(2));  // the store decides which came first
    while (resources->failure() && !latch->failed() && !first_cause_due.passed()) {
      co_await loop.sleep_for(std::chrono::milliseconds(1));
    }
    latch->throw_if_failed(members_.rank_in_job());
    if (const std::optional<Cause> own = resources->failure()) {
      throw_cause(*own);
    }
  }

  /// Collective, blocking: a new channel for the ranks of this group, which never waits for another, from the group's
  /// own if the backend can. Every rank opens the same channels in the same order. Error sentences contain `purpose`,
  /// and the text of `describe` for an operation unless it is empty. @param accumulate f32: even if the group's is not
  Communicator open_channel(const std::string& purpose, Accumulate accumulate = Accumulate::element,
                            const backend::DescribeOperation& describe = {}) const {
    Communicator& own = live();
    const backend::ChannelContext context = next_channel_context(purpose, accumulate, describe);
    const Deadline deadline = Deadline::after(rank_context_->timeout);
    if constexpr (backend::CanDuplicate<Backend>) {
      return Backend::duplicate_blocking(own, context, deadline);
    } else {
      return Backend::open_blocking(context, deadline);
    }
  }

  /// Collective, blocking: the group of the ranks that pass the same color, ordered by key, then by rank.
  std::shared_ptr<GroupState> split_blocking(int color, int key) {
    backend::check_color(color);
    Communicator& parent = live();
    run_unattended();  // other ranks may wait for this work before they call this
    std::optional<Communicator> child;
    try {
      child.emplace(parent.split_blocking(color, key, Deadline::after(rank_context_->timeout)));
    } catch (const JobFailed&) {
      throw;
    } catch (const std::exception&) {
      report_exception();  // the other ranks would wait for this one
      throw;
    }
    rendezvous::Membership members = child->members();
    std::shared_ptr<GroupState> state = make(rank_context_, std::move(members), next_split_prefix(color), options_);
    state->resources_->communicator.emplace(*std::move(child));
    return state;
  }

  /// A new stream of this rank. While the rank waits in another one, its work runs in the background.
  StreamOwner open_stream(stream::host::StreamKind kind = stream::host::StreamKind::program) const {
    StreamOwner stream;
    register_stream(stream, kind);
    return stream;
  }

  /// After the program has enqueued a collective on a stream: see StreamProgress. Device streams need nothing.
  void attend(typename Communicator::Stream stream) const noexcept {
    if constexpr (std::same_as<typename Communicator::Stream, stream::host::StreamRef>) {
      rank_context_->stream_progress.attend(stream, options_.progress);
    }
  }

  /// Rejects later collectives, and notifies peers that wait in one. Waits for collectives in the order of a stream of
  /// the program (enqueue_within); no other may be running.
  void close() noexcept override {
    finish_ordered();
    resources_->close();
  }

 private:
  struct ChannelResources;

  /// Blocking: until what enqueue_within() has enqueued has ended, for which the program need not wait: peers need this
  /// rank's part. Not after a failure.
  void finish_ordered() const noexcept try {
    if (resources_->communicator && !failure()->failed()) wait(resources_->order);
  } catch (...) {  // the channel has failed, and its peers end with the first cause
  }

  void require_open() const {
    if (!resources_->communicator) {
      throw_error(Errc::closed, "a collective was called on a process group that this rank has left");
    }
  }

  /// Kept until the rank leaves if an exception unwinds. The communicator is destroyed before its stream.
  struct ChannelResources {
    /// For the control thread, while the program's thread may close the group; nullopt once it is closed.
    /// @{
    std::optional<std::uint64_t> progress(const typename Communicator::Stream::Event& event) const {
      const std::lock_guard lock(closing);
      return communicator ? std::optional(backend::progress_of(event, *communicator)) : std::nullopt;
    }
    std::optional<Cause> failure() const {
      const std::lock_guard lock(closing);
      return communicator ? communicator->failure() : std::nullopt;
    }
    /// @}

    void close() noexcept {
      std::optional<Communicator> closed;  // destroyed after the lock is released, because closing may take long
      const std::lock_guard lock(closing);
      if (communicator) {
        closed.emplace(std::move(*communicator));
        communicator.reset();
      }
    }

    ScratchMemory scratch_memory;  ///< abandoned work may still write to it
    StreamOwner stream;
    DeviceBounceBuffer<typename Communicator::Stream> device_bounce_buffer;
    typename Communicator::Stream::Event order;
    mutable std::mutex closing;
    std::optional<Communicator> communicator;  ///< nullopt once this rank has left
  };

  GroupState(std::shared_ptr<RankContext> rank_context, rendezvous::Membership members, std::string prefix,
             const GroupOptions& options)
      : GroupStateBase(std::move(rank_context), std::move(members), std::move(prefix), options),
        resources_(std::make_shared<ChannelResources>()) {
    register_stream(resources_->stream, stream::host::StreamKind::program);
    static_cast<void>(resources_->stream.ref());  // creates it on this thread's device, if streams have one
    rank_context_->add(*this);
  }

  static std::shared_ptr<GroupState> make(std::shared_ptr<RankContext> rank_context, rendezvous::Membership members,
                                          std::string prefix, const GroupOptions& options) {
    return {new GroupState(std::move(rank_context), std::move(members), std::move(prefix), options),
            rendezvous::OffThreadDeleter()};
  }

  void register_stream(StreamOwner& stream, stream::host::StreamKind kind) const {
    if constexpr (requires { stream.register_with(rank_context_->streams, kind); }) {
      stream.register_with(rank_context_->streams, kind);
    }
  }

  std::shared_ptr<ChannelResources> resources_;
};

// Defined apart from the class, so that what is instantiated with the definitions is not instantiated again.

template <backend::Backend Backend>
std::shared_ptr<GroupState<Backend>> GroupState<Backend>::of_all_ranks(std::shared_ptr<RankContext> rank_context,
                                                                       const GroupOptions& options) {
  rendezvous::Membership members = rank_context->control_plane.membership();
  std::shared_ptr<GroupState> state = make(std::move(rank_context), std::move(members), "", options);
  state->resources_->communicator.emplace(Backend::open_blocking(state->channel_context("group", options.accumulate),
                                                                 Deadline::after(state->rank_context_->timeout)));
  return state;
}

template <backend::Backend Backend>
GroupState<Backend>::~GroupState() {
  rank_context_->remove(*this);
  if (unwinds()) {
    rank_context_->keep_alive_until_leave(std::move(resources_));
  } else {
    finish_ordered();
  }
}

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED GroupStateBase::GroupStateBase(std::shared_ptr<RankContext> rank_context, rendezvous::Membership members,
                                              std::string prefix, const GroupOptions& options)
    : tasks(rank_context->tasks),
      rank_context_(std::move(rank_context)),
      members_(std::move(members)),
      options_(options),
      prefix_(std::move(prefix)),
      barrier_ranks_(has_all_ranks() ? nullptr
                                     : std::make_shared<const rendezvous::RankSet>(
                                           rendezvous::RankSet::of(members_.ranks_in_job()))) {}

DTRAIN_DEFINED rendezvous::Store GroupStateBase::store() const {
  rendezvous::Store store = rank_context_->store().with_timeout(rank_context_->timeout);
  return has_all_ranks() ? store : store.with_prefix(prefix_).with_barrier_ranks(barrier_ranks_);
}

DTRAIN_DEFINED void GroupStateBase::report_abandoned_step(bool unwinding) const noexcept {
  const auto grace = unwinding ? std::chrono::milliseconds(100) : std::chrono::milliseconds(0);
  rank_context_->report_after(grace, "a step was abandoned without finish()");
}

DTRAIN_DEFINED WaitUntilSet GroupStateBase::set_in_background(StoreEntries entries) const {
  return rank_context_->set_in_background(own_store(), std::move(entries));
}

DTRAIN_DEFINED int GroupStateBase::next_number(const std::string& purpose) const {
  const std::lock_guard lock(numbers_mutex_);
  auto found = std::find_if(numbers_.begin(), numbers_.end(), [&](const auto& one) { return one.first == purpose; });
  if (found == numbers_.end()) {
    found = numbers_.insert(found, {purpose, 0});
  }
  return ++found->second;
}

DTRAIN_DEFINED backend::ChannelContext GroupStateBase::channel_context(
    const std::string& purpose, Accumulate accumulate, const backend::DescribeOperation& describe) const {
  const std::string name = prefix_ + purpose;
  run_unattended();  // other ranks may wait for this work before they open their channels
  backend::ChannelContext context{
      members_,
      name,
      with_call_purpose(rank_context_->store().with_prefix(name + "/"), format_text("channel '{}'", {name})),
      failure(),
      rank_context_->timeout,
      [streams = rank_context_->streams] { streams->run_unattended(); },
      describe,
      accumulate};
  context.activity = rank_context_->activity->add_channel(name, describe);
  context.is_shown_by_store = true;
  return context;
}

DTRAIN_DEFINED backend::ChannelContext GroupStateBase::next_channel_context(
    const std::string& purpose, Accumulate accumulate, const backend::DescribeOperation& describe) const {
  return channel_context(format_text("{}-{}", {purpose, channels_opened_.fetch_add(1)}),
                         std::max(accumulate, options_.accumulate), describe);
}

DTRAIN_DEFINED std::string GroupStateBase::next_split_prefix(int color) {
  return format_text("{}split-{}-{}/", {prefix_, splits_++, color});
}

DTRAIN_DEFINED void GroupStateBase::report_exception() const {
  const int self = members_.rank_in_job();
  failure()->report({CauseKind::exception, self, members_.host, exception_text()});
  failure()->block_until_failed(Deadline::after(std::chrono::seconds(2)));
  failure()->throw_if_failed(self);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::group
