#pragma once
/// @file
/// ChannelContext: name, members, store, failure latch, timeout and options of a channel. GroupState (group/) gives one
/// to open_blocking() of the backend, or of AlgorithmBackend (topology/); the communicators of all backends keep it.

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "dtrain/backend/algorithm_choice.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/backend/store_ref.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Every rank opens the same channels in the same order, hence with equal names.
/// @ingroup backends
struct ChannelContext {
  rendezvous::Membership members;         ///< this rank, its host and node, and the channel's ranks
  std::string name;                       ///< unique in the job, e.g. "group/ddp-1"; a prefix for store keys
  StoreRef store;                         ///< exchanges setup data; constructible from a rendezvous::Store
  std::shared_ptr<FailureLatch> failure;  ///< a failed job aborts the channel; a failed channel reports here
  std::chrono::nanoseconds timeout;       ///< of one collective, from the moment it begins to run
  /// The thread that runs an operation calls it after about 1 ms of waiting for a peer, and before each further sleep
  /// (tens of milliseconds at most). Reason: the peer may wait for work of this rank on another stream that no thread
  /// runs. Must not throw or block; may be empty. A split channel calls its parent's.
  std::function<void()> on_stall{};
  DescribeOperation describe{};  ///< may be empty
  Accumulate accumulate{};       ///< the same on every rank; a backend without f32 refuses it in open_blocking
  /// How long an operation waits for other ranks until a warning in the log says so; see WaitNotice. Not for NCCL.
  std::chrono::milliseconds notice_after = std::chrono::seconds(10);
  AlgorithmChoice algorithms{};  ///< the same on every rank

  /// Starts this rank's work on other streams before it waits here, because peers may need that work first.
  void run_other_streams() const {
    if (on_stall) on_stall();
  }

  /// This rank's number in the job, under which failures are reported.
  int reporting_rank() const noexcept { return members.rank_in_job(); }
};

}  // namespace DTRAIN_NAMESPACE::backend
