#pragma once
/// @file
/// Parameters for opening a channel.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "dtrain/backend/operation.hpp"
#include "dtrain/backend/setup/store_ref.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// One channel of one group. Every rank opens the same channels in the same order, so `name` is the same on all.
struct ChannelContext {
  rendezvous::Membership members;         ///< this rank, its host and node, and the channel's ranks
  std::string name;                       ///< unique in the job, e.g. "group/ddp-1"; a prefix for store keys
  StoreRef store;                         ///< for exchanging what opening needs; takes a rendezvous::Store
  std::shared_ptr<FailureLatch> failure;  ///< aborts the channel; takes its reports
  std::chrono::nanoseconds timeout;       ///< of one collective, from the moment it begins to run
  /// Called by the thread that runs an operation once it has waited for a peer for about a millisecond, and again
  /// before each further sleep (tens of milliseconds at most): the peer may itself wait for work of this rank that lies
  /// on another stream and that nobody runs. Does not throw or block; may be empty. A split channel calls its parent's.
  std::function<void()> on_stall{};
  DescribeOperation describe{};  ///< may be empty
  Accumulate accumulate{};       ///< the same on every rank; a backend that cannot refuses f32 when it opens

  /// This rank's number in the job, which failures are reported under.
  int reporting_rank() const noexcept { return members.rank_in_job(); }
};

}  // namespace DTRAIN_NAMESPACE::backend
