#pragma once
/// @file
/// ExternalEvent: an event that the host completes and a host stream waits for.

#include <atomic>
#include <cstdint>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"
#include "dtrain/stream/stream.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// Incomplete until signal(). Threads: all members from any thread. Lifetime: pinned; outlives the work that waits for
/// it. signal() does not use the event after it has become complete: a thread that sees it complete may destroy it.
class ExternalEvent {
 public:
  ExternalEvent() = default;
  ExternalEvent(const ExternalEvent&) = delete;
  ExternalEvent& operator=(const ExternalEvent&) = delete;

  bool is_complete() const noexcept { return state_.load(std::memory_order_acquire) >= signalled; }

  /// Whether a stream's wait reached its deadline before the signal.
  bool timed_out() const noexcept { return state_.load(std::memory_order_acquire) == expired; }

  void signal() noexcept { complete_as(signalled); }

  /// Makes it incomplete again. Not while a thread waits.
  void reset() noexcept { state_.store(idle, std::memory_order_release); }

  WaitResult block_until_complete(Deadline deadline) const noexcept {
    std::uint32_t state = state_.load(std::memory_order_acquire);
    while (state < signalled) {
      if (state == idle && !state_.compare_exchange_strong(state, awaited, std::memory_order_acquire)) {
        continue;
      }
      const FutexResult result = futex_wait(state_, awaited, deadline, FutexScope::process);
      state = state_.load(std::memory_order_acquire);
      if (result == FutexResult::timed_out && state < signalled) {
        return WaitResult::timed_out;
      }
    }
    return WaitResult::complete;
  }

 private:
  friend class StreamRef;
  enum SignalState : std::uint32_t { idle, awaited, signalled, expired };

  void complete_as(SignalState final_state) noexcept {
    std::uint32_t state = state_.load(std::memory_order_relaxed);
    while (state < signalled && !state_.compare_exchange_weak(state, final_state, std::memory_order_acq_rel)) {
    }
    if (state == awaited) {
      futex_wake_all(state_, FutexScope::process);
    }
  }

  mutable std::atomic<std::uint32_t> state_{idle};
};

}  // namespace DTRAIN_NAMESPACE::stream::host
