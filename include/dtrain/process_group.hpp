#pragma once
/// @file
/// dtrain::ProcessGroup: a program's handle on its job, or on a subgroup of ranks; collectives, store, split.

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/group/collectives.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/group/group_state.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/policy.hpp"
#include "dtrain/rendezvous/control/task_runner.hpp"

namespace DTRAIN_NAMESPACE {

using async::BackgroundTask;
using async::Task;
using rendezvous::Membership;

/// A rank's handle on its job, or on a subgroup of the job's ranks. Copies refer to the same group. The collectives are
/// those of its base class group::Collectives.
///
/// Threads: collectives of one group come from one thread at a time, in the same order on every rank. Collectives of
/// different groups (split) never wait for each other. store(), check() and the identity: any thread.
/// Errors: once the job has failed, every call throws its first cause: PeerLost or JobFailed; Error on its origin.
/// Leaving: the destruction of this rank's last handle, on the job or on a subgroup, leaves the job, which goes on
/// without this rank. If an exception unwinds the stack at that moment, the rank has failed and the other ranks are
/// notified.
/// @ingroup jobs
template <class P>
class ProcessGroup : public group::Collectives<ProcessGroup<P>, group::GroupState<typename P::ChannelBackend>> {
 public:
  using Policy = P;
  using Communicator = typename P::ChannelBackend::Communicator;
  using Stream = typename Communicator::Stream;
  using StreamOwner = typename P::ChannelBackend::StreamOwner;

  /// Collective, blocking: joins the job as the rank that `worker` describes. For run() and init_process_group().
  /// @throws Error for an identity that conflicts with another rank's, a host that does not resolve, a port in use, or
  /// a deadline that passes (the sentence names the ranks that have not joined).
  static ProcessGroup join(const rendezvous::ControlPlaneOptions& worker, const GroupOptions& options = {}) {
    group::PreJoin pre_join = nullptr;
    if constexpr (backend::HasPreJoin<typename P::Backend>) {
      pre_join = [](const identity::ProcessIdentity& identity, std::optional<rendezvous::Secret>& secret,
                    Deadline deadline) { return P::Backend::pre_join_blocking(identity, secret, deadline); };
    }
    return ProcessGroup(
        State::of_all_ranks(group::join_job_blocking(worker, pre_join, group::required_settings<P>(options)), options));
  }

  /// Rank and size within this group. Failure causes and log lines name ranks of the job: members().rank_in_job().
  int rank() const noexcept { return members().rank; }
  int world_size() const noexcept { return members().world_size; }

  /// Position of this process in the whole job, also for a subgroup.
  int local_rank() const noexcept { return members().local_rank; }
  int local_world_size() const noexcept { return members().local_world_size; }
  int node_rank() const noexcept { return members().node_rank; }
  int node_count() const noexcept { return members().node_count; }
  const rendezvous::Membership& members() const noexcept { return state_->members(); }

  /// Time limit of one collective, from the moment it begins to run (DTRAIN_TIMEOUT_SECONDS).
  std::chrono::nanoseconds timeout() const noexcept { return rank_context().timeout; }

  /// Collective, blocking: the group of the ranks that pass the same `color` (at least 0), ordered by `key`, then by
  /// rank() here. With the same color on all ranks it is a second group of the same ranks, for another thread.
  /// - Its own: channel, stream, part of the store. It can be wrapped by DistributedDataParallel and split again.
  /// - Shared with the job: failures and the control loop. Destroying a subgroup does not leave the job.
  /// @throws Error (invalid_argument) for a negative color; the job's first cause
  ProcessGroup split(int color, int key = 0) const requires backend::CanSplit<Communicator> {
    return ProcessGroup(state_->split_blocking(color, key));
  }

  /// The job's key-value store. Calls without a deadline take at most timeout(). A subgroup sees its own keys only, and
  /// its barriers wait for its ranks only.
  rendezvous::Store store() const { return state_->store(); }

  /// Runs a coroutine on this rank's control loop and returns its value:
  /// `run([&]() -> dtrain::Task<std::string> { co_return co_await group.store().get("key"); })`.
  /// In the coroutine, co_await store calls: their wait(), and every other blocking call of dtrain, throws there, since
  /// it would wait for itself. Any other blocking of the thread delays this rank's control messages.
  /// Blocking: until the coroutine has ended; at the deadline it is cancelled. The default deadline is timeout() plus a
  /// grace period, so that the store's own timeouts come first.
  /// @param make returns the Task; may take the loop (async::EventLoop&)
  /// @throws the coroutine's exception; the job's first cause; Error (timeout); Error (closed) after leave()
  template <class Make>
  auto run(Make&& make, std::optional<Deadline> deadline = {}) const {
    const Deadline by = deadline ? *deadline : with_grace(Deadline::after(timeout()));
    return rank_context().tasks.run_blocking(make, by);
  }

  /// Runs a coroutine in the background until it ends, the returned BackgroundTask is destroyed, the job fails or this
  /// rank leaves. BackgroundTask::wait returns its value or throws its exception, which is lost otherwise.
  /// Lifetime: `make` is kept; a handle of the group outside the coroutine outlives it. Threads: any.
  template <class Make>
  auto spawn(Make make) const {
    return rank_context().tasks.start(std::move(make));
  }

  /// The group's own stream, on which its blocking collectives run.
  Stream stream() const { return state_->stream(); }

  /// A new stream for collectives of this rank. Its collectives make progress by themselves (GroupOptions::progress),
  /// so that channels never wait for each other. Lifetime: outlives its work. Like the group's own stream, it is not
  /// used after leave().
  StreamOwner open_stream() const { return state_->open_stream(); }

  /// Checks the failures known to this rank; barrier() checks all ranks. Blocking: no. Threads: any.
  /// @throws the job's first cause if the job has failed
  void check() const { state_->failure()->throw_if_failed(members().rank_in_job()); }

  /// Leaves the job, with all groups of this rank: its exit is no failure from now on. For run(). On a subgroup it only
  /// closes that group. No collective may be running. Blocking: the rank that hosts the store waits until all ranks
  /// have left, for at most timeout().
  void leave() const {
    rank_context().require_may_block();
    if (state_->has_all_ranks()) {
      rank_context().leave_blocking();
    } else {
      state_->close();
    }
  }

 private:
  using State = group::GroupState<typename P::ChannelBackend>;
  friend group::Collectives<ProcessGroup, State>;
  friend group::OwnReductions<ProcessGroup, State>;
  friend group::GroupAccess;

  explicit ProcessGroup(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  const State& internals() const noexcept { return *state_; }

  group::RankContext& rank_context() const noexcept { return *state_->rank_context(); }

  std::shared_ptr<State> state_;
};

/// A collective that a group has enqueued: `dtrain::Work<Policy> work = group.all_reduce(values, op, stream);`
/// @ingroup collectives
template <class P>
using Work = typename ProcessGroup<P>::Work;

}  // namespace DTRAIN_NAMESPACE
