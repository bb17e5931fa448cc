#pragma once
/// @file
/// ChannelContext: name, members, store, failure latch, timeout and options of a backend's channel; ranks open channels
/// in one order.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "dtrain/backend/channel_activity.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/backend/store_ref.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
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
  std::chrono::nanoseconds timeout;       ///< limit of one collective, from the moment it begins to run
  /// The thread that runs an operation calls it after about 1 ms of waiting for a peer, and before each further sleep
  /// (tens of milliseconds at most). Reason: the peer may wait for work of this rank on another stream that no thread
  /// runs. Must not throw or block; may be empty. A split channel calls its parent's.
  std::function<void()> on_stall{};
  DescribeOperation describe{};  ///< may be empty
  Accumulate accumulate{};       ///< the same on every rank; a backend without f32 rejects it in open_blocking
  /// How long an operation waits for other ranks until a warning in the log says so; see WaitNotice.
  std::chrono::milliseconds notice_after = std::chrono::seconds(10);
  std::shared_ptr<ChannelActivity> activity{};  ///< null: no other thread asks which operation the channel is in
  bool is_shown_by_store = false;               ///< the job's store shows what ranks wait in, so channels need not warn

  /// Starts this rank's work on other streams before it waits here, because peers may need that work first.
  void run_other_streams() const {
    if (on_stall) on_stall();
  }

  /// This rank's number in the job, under which failures are reported.
  int reporting_rank() const noexcept { return members.rank_in_job(); }
};

namespace detail {

/// Reports the exception that is being handled to the job. Otherwise the other ranks would wait for this rank until
/// their deadline. @param error the exception, if it is an Error; null otherwise
void report_failed_opening(const ChannelContext& context, const Error* error);

}  // namespace detail

/// @throws Error (invalid_argument) for a negative color of a split
void check_color(int color);

/// Returns `make()`. @throws its exceptions; all but JobFailed are first reported to the job
template <class Make>
auto reporting_failure(const ChannelContext& context, Make make) -> decltype(make()) {
  try {
    return make();
  } catch (const JobFailed&) {
    throw;
  } catch (const Error& error) {
    detail::report_failed_opening(context, &error);
    throw;
  } catch (const std::exception&) {  // out of memory, for example
    detail::report_failed_opening(context, nullptr);
    throw;
  }
}

/// Calls `Communicator::open_blocking`. Collective, blocking.
/// @throws the job's first cause; exceptions of open_blocking, after the report
template <class Communicator, class... Options>
Communicator open_and_report_blocking(const ChannelContext& context, Deadline deadline, const Options&... options) {
  context.failure->throw_if_failed(context.reporting_rank());
  return reporting_failure(context, [&] { return Communicator::open_blocking(context, deadline, options...); });
}

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void check_color(int color) {
  if (color < 0) {
    throw_error(Errc::invalid_argument,
                "split with color {}; colors begin at 0: give ranks that need no group a color of their own", {color});
  }
}

DTRAIN_DEFINED void detail::report_failed_opening(const ChannelContext& context, const Error* error) {
  const bool is_late = error != nullptr && error->code() == make_error_code(Errc::timeout);
  const int self = context.reporting_rank();
  const int rank = error != nullptr ? error->rank().value_or(self) : self;  // another one's, if all ranks got its error
  context.failure->report({is_late ? CauseKind::timeout : CauseKind::exception, rank,
                           rank == self ? context.members.host : "", exception_text()});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend
