#pragma once
/// @file
/// block_until_complete(): the host's wait for a communicator's enqueued work; throws the job's first cause, or a
/// timeout if no operation completes.

#include <chrono>
#include <cstdint>
#include <optional>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Throws if the job or this communicator has failed. Blocking: at most 2 s, if the communicator has failed and the
/// job's first cause is not known yet.
/// @throws PeerLost, JobFailed, Error: see FailureLatch::throw_if_failed; the communicator's cause if the job's stays
/// unknown
template <Communicator C>
void throw_if_failed(const C& communicator, const FailureLatch& failure, int rank_in_job) {
  const std::optional<Cause> own = communicator.failure();
  if (own) {
    failure.block_until_failed(Deadline::after(std::chrono::seconds(2)));
  }
  failure.throw_if_failed(rank_in_job);
  if (own) {
    throw_cause(*own);
  }
}

/// A counter that changes while work advances: the stream's if the event has one, else the communicator's, else 0.
template <stream::Event E, Communicator C>
std::uint64_t progress_of(const E& event, const C& communicator) noexcept {
  if constexpr (requires { event.progress(); }) {
    return event.progress();
  } else if constexpr (requires { communicator.progress(); }) {
    return communicator.progress();
  } else {
    return 0;
  }
}

/// event.is_complete() for dtrain's own threads: on CUDA it does not disturb a thread that captures a graph.
template <stream::Event E>
bool is_complete_beside_capture(const E& event) noexcept {
  if constexpr (requires { event.is_complete_beside_capture(); }) {
    return event.is_complete_beside_capture();
  } else {
    return event.is_complete();
  }
}

/// @param stream as the sentence names it: "the communication stream" @throws Error (timeout)
[[noreturn]] void throw_stalled(const char* stream, std::chrono::nanoseconds timeout);

/// Blocking: until the work before `event` is complete. Each operation has its own timeout, which starts when it begins
/// to run. The wait's deadline is for a stream that no thread runs; the deadline restarts as long as operations
/// complete.
/// @throws as throw_if_failed; Error (timeout) if no operation completes within twice the timeout
template <stream::Event E, Communicator C>
void block_until_complete(E& event, const C& communicator, const FailureLatch& failure,
                          std::chrono::nanoseconds timeout, int rank_in_job) {
  for (;;) {
    const std::uint64_t before = progress_of(event, communicator);
    const stream::WaitResult result = event.block_until_complete(Deadline::after(2 * timeout));
    throw_if_failed(communicator, failure, rank_in_job);
    if (result == stream::WaitResult::complete) {
      return;
    }
    if (progress_of(event, communicator) == before) {
      throw_stalled("the communication stream", timeout);
    }
  }
}

#if DTRAIN_DEFINITIONS

DTRAIN_NOT_INLINED DTRAIN_DEFINED void throw_stalled(const char* stream, std::chrono::nanoseconds timeout) {
  throw_error(Errc::timeout,
              "waiting for {}, which made no progress for {}, twice the timeout (DTRAIN_TIMEOUT_SECONDS); is a step of "
              "another thread still using it?",
              {stream, duration_text(2 * timeout)});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend
