#pragma once
/// @file
/// Diagnosis of a timeout: whether the ranks called different operations.

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/duration_text.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"

#if DTRAIN_WITH_NCCL

/// NCCL compares nothing: ranks that call different operations wait for each other. A rank that times out writes its
/// operation to the store, under its rank, and reads the next rank's. If not all ranks are in the same operation, some
/// rank differs from the next one.
namespace DTRAIN_NAMESPACE::backend::nccl {

/// Value in the store for a rank that has closed its end.
inline constexpr const char* has_left = "has left the channel";

inline std::string timeout_key(const ChannelContext& context, int rank) {
  return format_text("{}/timeout/{}", {context.name, rank});
}

/// Maximum time between the timeouts of two ranks. A caller that waits for the stream waits twice the timeout.
inline std::chrono::nanoseconds grace_period(std::chrono::nanoseconds timeout) {
  return std::min<std::chrono::nanoseconds>(timeout / 3, std::chrono::seconds(5));
}

/// Blocking: at most three times grace_period(timeout). @returns why `operation` has not ended; empty once the job has
/// failed
inline std::optional<Cause> diagnose_timeout_blocking(const ChannelContext& context, const Operation& operation) {
  const std::string ordinal = operation.sequence == 0 ? "" : " as operation " + std::to_string(operation.sequence);
  const std::string called = format_text(" called {}{}", {to_string(operation), ordinal});
  const std::string own = format_text("rank {}{}", {context.reporting_rank(), called});
  const int size = context.members.world_size;
  std::string detail =
      "does every rank call it, and the operations of all channels in the same order? DTRAIN_TIMEOUT_SECONDS is how "
      "long it may take";
  try {
    const Deadline deadline = Deadline::after(grace_period(context.timeout));
    context.store.set_blocking(timeout_key(context, context.members.rank), own, deadline);
    const int next = (context.members.rank + 1) % size;
    const std::string other = sanitize(context.store.get_blocking(timeout_key(context, next), deadline).substr(0, 300));
    if (operation.sequence != 0 && other.ends_with(ordinal) && !other.ends_with(called)) {
      return Cause{CauseKind::disagreement, -1, "",
                   format_text("on channel '{}', {} and {}; every rank calls the same collectives in the same order",
                               {context.name, own, other})};
    }
    if (!other.ends_with(called)) {  // it has left, or is in another operation, maybe an earlier one
      detail = other + "; every rank calls the same collectives in the same order";
    } else if (context.failure->block_until_failed(Deadline::after(2 * grace_period(context.timeout)))) {
      return std::nullopt;  // other ranks differ; one that timed out later may still wait for its next rank
    }
  } catch (const JobFailed&) {
    return std::nullopt;
  } catch (const Error&) {
    detail = format_text("rank {} of the channel is in none; {}", {(context.members.rank + 1) % size, detail});
  }
  return Cause{CauseKind::timeout, context.reporting_rank(), context.members.host,
               format_text("{}: it had not ended after {}; {}",
                           {described_on(context.name, operation), duration_text(context.timeout), detail})};
}

/// Erases this rank's operation, which has ended after all: otherwise the previous rank could read it later, during
/// another operation. Blocking: a second at most.
inline void retract_timeout(const ChannelContext& context) noexcept {
  try {
    context.store.erase_blocking(timeout_key(context, context.members.rank), Deadline::after(std::chrono::seconds(1)));
  } catch (...) {
    // The job has failed, or a message will name an earlier operation.
  }
}

/// The last rank to leave erases all entries: no rank will read them.
inline void erase_after_last_departure(const ChannelContext& context, Deadline deadline) {
  const std::string left = context.name + "/timeout/left";
  if (context.store.add_blocking(left, 1, deadline) == context.members.world_size) {
    for (int rank = 0; rank < context.members.world_size; ++rank) {
      context.store.erase_blocking(timeout_key(context, rank), deadline);
    }
    context.store.erase_blocking(left, deadline);
  }
}

/// Publishes that this rank has left, for a rank that waits for it. @param last whether this rank publishes nothing
/// more. Blocking: a second at most.
inline void publish_departure(const ChannelContext& context, bool last) noexcept {
  try {
    if (context.members.world_size > 1 && !context.failure->failed()) {
      const Deadline deadline = Deadline::after(std::chrono::seconds(1));
      context.store.set_blocking(timeout_key(context, context.members.rank),
                                 format_text("rank {} {}", {context.reporting_rank(), has_left}), deadline);
      if (last) {
        erase_after_last_departure(context, deadline);
      }
    }
  } catch (...) {
    // The other ranks detect it later without this entry.
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
