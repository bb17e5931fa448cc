#pragma once
/// @file
/// WaitTime: how long the calling thread has waited in dtrain: for other threads, for other ranks, for a device.

#include <chrono>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

/// Adds the time from its constructor to its destructor to the calling thread's waits. It is for waits that sleep or
/// yield, because it reads the clock twice; short spins are not counted. Not nested.
class WaitTime {
 public:
  using Clock = std::chrono::steady_clock;

  WaitTime() noexcept : began_(Clock::now()) {}
  ~WaitTime() { add(Clock::now() - began_); }
  WaitTime(const WaitTime&) = delete;
  WaitTime& operator=(const WaitTime&) = delete;

  /// Adds a wait that the caller has measured.
  static void add(Clock::duration wait) noexcept { of_thread_ += wait; }

  /// The sum of the calling thread's waits.
  static std::chrono::nanoseconds of_thread() noexcept { return of_thread_; }

 private:
  static inline constinit thread_local Clock::duration of_thread_{};

  Clock::time_point began_;
};

}  // namespace DTRAIN_NAMESPACE
