#pragma once
/// @file
/// CallMonitor: whether a thread is inside a call to MPI.

#include <atomic>
#include <chrono>
#include <cstdint>

#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Counts each call's begin and end; calls do not nest. Threads: InCall in the one that holds the ProgressLoop's lock,
/// number() from any.
class CallMonitor {
 public:
  class InCall {
   public:
    explicit InCall(CallMonitor& monitor) noexcept : monitor_(monitor) {
      monitor_.number_.fetch_add(1, std::memory_order_relaxed);
    }
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;
    ~InCall() { monitor_.number_.fetch_add(1, std::memory_order_relaxed); }

   private:
    CallMonitor& monitor_;
  };

  /// Odd inside a call.
  std::uint64_t number() const noexcept { return number_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> number_{0};
};

/// Distinguishes a call that does not return from a thread that is busy: reducing, or without a core.
class HangDetector {
 public:
  HangDetector(const CallMonitor& monitor, std::chrono::milliseconds timeout) noexcept
      : monitor_(monitor), timeout_(timeout), last_number_(monitor.number()), deadline_(Deadline::after(timeout)) {}

  /// Whether the thread has been inside one call since a check that is at least `timeout` old.
  bool hangs() noexcept {
    const std::uint64_t now = monitor_.number();
    if (now != last_number_ || now % 2 == 0) {
      last_number_ = now;
      deadline_ = Deadline::after(timeout_);
    }
    return deadline_.passed();
  }

 private:
  const CallMonitor& monitor_;
  const std::chrono::milliseconds timeout_;
  std::uint64_t last_number_;
  Deadline deadline_;
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi
