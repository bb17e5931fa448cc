#pragma once
/// @file
/// ProcessGroup: a rank's handle on the job it belongs to, or on a subgroup of its ranks.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/backend/setup/pre_join.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/group/collectives.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/group/group_options.hpp"
#include "dtrain/group/group_state.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/policy.hpp"
#include "dtrain/rendezvous/control/off_thread_deleter.hpp"
#include "dtrain/rendezvous/control/task_runner.hpp"
#include "dtrain/rendezvous/membership/job_settings.hpp"

namespace DTRAIN_NAMESPACE {

using async::Task;
using rendezvous::BackgroundTask;

/// A shared handle: copies are the same group. Its collectives are those of group::Collectives: a call that takes a
/// stream enqueues on it and gives a Work; one without blocks, at most timeout(). Threads: collectives of one group
/// come from one thread at a time and in the same order on every rank; those of different groups (split) never wait for
/// each other; store(), check() and the identity from any thread. Errors: once the job has failed every call throws
/// its first cause (PeerLost, JobFailed; on the rank it came from, Error).
///
/// Leaving: the end of the last handle on the job or on any subgroup reports that this rank is done, and then the job
/// goes on without it. If an exception is unwinding the stack at that moment the rank counts as failed, and the others
/// are notified.
template <class P>
class ProcessGroup : public group::Collectives<ProcessGroup<P>, group::GroupState<typename P::Channels>> {
 public:
  using Policy = P;
  using Communicator = typename P::Channels::Communicator;
  using Stream = typename Communicator::Stream;
  using StreamOwner = typename P::Channels::StreamOwner;

  /// Collective, blocking: joins the job as the rank that `worker` describes. For run() and init_process_group().
  /// @throws Error for an identity that the others do not agree with, a host that does not resolve, a port in use, a
  /// deadline that passes (the sentence names who has not come).
  static ProcessGroup join(const launch::RankProcess& worker, const GroupOptions& options = {}) {
    launch::RankProcess self = worker;
    std::shared_ptr<void> base;
    if constexpr (backend::HasPreJoin<typename P::Backend>) {
      base = pre_join(self);
    }
    std::shared_ptr<group::RankContext> rank_context(
        new group::RankContext(self, required_settings(self, options), std::move(base)),
        rendezvous::OffThreadDeleter());
    return ProcessGroup(State::of_all_ranks(std::move(rank_context), options));
  }

  /// Among the ranks of this group. Causes and log lines name ranks of the job: members().rank_in_job().
  int rank() const noexcept { return members().rank; }
  int world_size() const noexcept { return members().world_size; }

  /// Where this process is in the whole job, also in a group that was split off.
  int local_rank() const noexcept { return members().local_rank; }
  int local_world_size() const noexcept { return members().local_world_size; }
  int node_rank() const noexcept { return members().node_rank; }
  int node_count() const noexcept { return members().node_count; }
  const rendezvous::Membership& members() const noexcept { return state_->members(); }

  /// The longest that one collective may take, from the moment it begins to run (DTRAIN_TIMEOUT_SECONDS).
  std::chrono::nanoseconds timeout() const noexcept { return rank_context().timeout; }

  /// Collective, blocking: the group of the ranks that give the same `color` (at least 0), ordered by `key`, then by
  /// rank() here. It has its own channel, stream and part of the store, takes DistributedDataParallel and can be split
  /// again; with the same color everywhere it is this group once more, for another thread. The job is shared: its
  /// failure, the control loop, and leaving it, which the end of a subgroup does not do.
  /// @throws Error (invalid_argument) for a negative color; the job's first cause
  ProcessGroup split(int color, int key = 0) const requires backend::CanSplit<Communicator> {
    return ProcessGroup(state_->split_blocking(color, key));
  }

  /// The job's key-value store; its calls without a deadline take timeout() at most. A group that was split off sees
  /// its own keys only, and its barriers are of its ranks.
  rendezvous::Store store() const { return state_->store(); }

  /// Runs a coroutine of yours on this rank's control loop, beside dtrain's own, and gives its value:
  /// `run([&]() -> dtrain::Task<std::string> { co_return co_await group.store().get("key"); })`. There a
  /// call of the store is awaited; its wait(), and each other call of dtrain's that blocks, throws instead of waiting
  /// for itself. Whatever else blocks the thread delays the whole rank's control. Blocking: until the coroutine has
  /// ended; at the deadline it is cancelled (none: timeout() and a moment, for what the store says of its own
  /// timeouts). @param make gives the Task; may take the loop (async::EventLoop&)
  /// @throws what the coroutine throws; the job's first cause; Error (timeout); Error (closed) after leave()
  template <class Make>
  auto run(Make&& make, std::optional<Deadline> deadline = {}) const {
    const Deadline by = deadline ? *deadline : rendezvous::with_grace(Deadline::after(timeout()));
    return rank_context().tasks.run_blocking(make, by);
  }

  /// The same in the background: the coroutine runs until it ends, its owner (the result) is destroyed, the job fails
  /// or this rank leaves. BackgroundTask::wait gives its value and its exception, which otherwise is lost.
  /// Lifetime: `make` is kept; a handle of the group outside the coroutine outlives it. Threads: any.
  template <class Make>
  auto spawn(Make make) const {
    return rank_context().tasks.start(std::move(make));
  }

  /// The stream that the group's own collectives run on when they block.
  Stream stream() const { return state_->stream(); }

  /// A stream of your own for collectives of this rank. While the rank waits long in a collective on one of its
  /// streams, what is enqueued on the others is run in the background, so that channels never wait for each other.
  /// Lifetime: outlives the work and, like the group's own, is no longer used after leave().
  StreamOwner open_stream() const { return state_->open_stream(); }

  /// Work enqueued on this rank's streams begins to run, in the background where no thread runs it: before a long
  /// wait that is no collective, if other ranks may wait for it meanwhile. Blocking: no.
  void start_pending() const noexcept { rank_context().streams->run_unattended(); }

  /// Asks this rank alone: a barrier() asks all of them. Blocking: no. Threads: any.
  /// @throws the first cause where the job has failed
  void check() const { internals().failure()->throw_if_failed(members().rank_in_job()); }

  /// This rank is done, with all its groups: from now on its end is no loss. For run(). On a group that was
  /// split off it only closes that. Not while a collective runs. Blocking: a rank that hosts the store stays until all
  /// have left, timeout() at most.
  void leave() const {
    internals().require_may_block();
    if (state_->has_all_ranks()) {
      rank_context().leave_blocking();
    } else {
      state_->close();
    }
  }

 private:
  using State = group::GroupState<typename P::Channels>;
  friend group::Collectives<ProcessGroup, State>;
  friend group::GroupAccess;

  explicit ProcessGroup(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  group::GroupInternals<State> internals() const { return group::GroupInternals<State>(state_); }

  /// Work of a backend before the ranks join; it may know the job's secret. @returns resources that stay until the end
  static std::shared_ptr<void> pre_join(launch::RankProcess& worker) {
    const identity::ProcessIdentity& identity = worker.identity;
    backend::ProcessInfo process_info{identity.rank,       identity.world_size,      identity.launcher, {},
                                      identity.local_rank, identity.local_world_size};
    if (worker.secret) {
      process_info.secret = worker.secret->text();
    }
    backend::PreJoinResult entry = P::Backend::pre_join_blocking(process_info, Deadline::after(worker.timeout));
    if (entry.secret) {
      worker.secret = rendezvous::Secret::of(std::move(*entry.secret), "what the backend handed out");
    }
    return std::move(entry.keep_alive);
  }

  /// Settings that must be the same on all ranks. Models and their options are compared when they are wrapped.
  static std::string required_settings(const launch::RankProcess& worker, const GroupOptions& options) {
    rendezvous::JobSettings settings;
    settings.add("launcher", P::Launcher::name())
        .add("backend", P::Backend::name())
        .add("topology", P::Topology::name());
    settings.add("DTRAIN_TIMEOUT_SECONDS", std::to_string(std::chrono::duration<double>(worker.timeout).count()));
    settings.add("GroupOptions::accumulate", name(options.accumulate));
    return settings.text();
  }

  group::RankContext& rank_context() const noexcept { return *state_->rank_context(); }

  std::shared_ptr<State> state_;
};

}  // namespace DTRAIN_NAMESPACE
