#pragma once
/// @file
/// Opening of a channel, with failures of this rank reported to the job. Each backend's open_blocking() calls it.

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Reports a failed opening to the job. Otherwise the other ranks would wait for this rank until their deadline.
void report_failed_opening(const ChannelContext& context, const Error& error);

/// Returns `make()`. @throws its exceptions; an Error other than JobFailed is first reported to the job
template <class Make>
auto reporting_failure(const ChannelContext& context, Make make) -> decltype(make()) {
  try {
    return make();
  } catch (const JobFailed&) {
    throw;
  } catch (const Error& error) {
    report_failed_opening(context, error);
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

DTRAIN_DEFINED void report_failed_opening(const ChannelContext& context, const Error& error) {
  const CauseKind kind = error.code() == make_error_code(Errc::timeout) ? CauseKind::timeout : CauseKind::exception;
  const int rank = error.rank().value_or(context.reporting_rank());  // another one's, if all ranks got its error
  const bool own = rank == context.reporting_rank();
  context.failure->report({kind, rank, own ? context.members.host : "", error.what()});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend
