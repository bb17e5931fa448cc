#pragma once
/// @file
/// Opening of a channel, with failures of this rank reported to the job. Each backend's open_blocking() calls it.

#include <exception>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::backend {

namespace detail {

/// Reports the exception that is being handled to the job. Otherwise the other ranks would wait for this rank until
/// their deadline. @param error the exception, if it is an Error; null otherwise
void report_failed_opening(const ChannelContext& context, const Error* error);

}  // namespace detail

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
  } catch (const std::exception&) {  // such as out of memory
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

DTRAIN_DEFINED void detail::report_failed_opening(const ChannelContext& context, const Error* error) {
  const bool is_late = error != nullptr && error->code() == make_error_code(Errc::timeout);
  const int self = context.reporting_rank();
  const int rank = error != nullptr ? error->rank().value_or(self) : self;  // another one's, if all ranks got its error
  context.failure->report({is_late ? CauseKind::timeout : CauseKind::exception, rank,
                           rank == self ? context.members.host : "", exception_text()});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend
