#pragma once
/// @file
/// The time that passes while this machine runs.

#include <chrono>
#include <mutex>
#include <thread>

#include "dtrain/core/deadline.hpp"

namespace support {

/// How long this process did not get to run, as a thread sees that wants to look up every 10 ms: a virtual machine may
/// stand still for seconds. Threads: any.
class Standstill {
 public:
  using Clock = dtrain::Deadline::Clock;

  static Standstill& of_this_process() {
    static Standstill only;
    return only;
  }
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;

  Clock::duration so_far() const {
    const std::lock_guard lock(mutex_);
    return sum_ + beyond_a_turn(Clock::now() - last_look_);
  }

 private:
  static constexpr std::chrono::milliseconds turn{10};

  /// Once its thread has begun: it is not to be forked in the middle of that.
  Standstill() {
    const Clock::time_point start = last_look_;
    thread_ = std::jthread([this](const std::stop_token& stop) { look_on(stop); });
    for (bool begun = false; !begun;) {
      std::this_thread::sleep_for(turn);
      const std::lock_guard lock(mutex_);
      begun = last_look_ != start;
    }
  }

  static Clock::duration beyond_a_turn(Clock::duration gap) {
    return gap > 5 * turn ? gap - turn : Clock::duration::zero();
  }

  void look_on(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(turn);
      const std::lock_guard lock(mutex_);
      const Clock::time_point now = Clock::now();
      sum_ += beyond_a_turn(now - last_look_);
      last_look_ = now;
    }
  }

  mutable std::mutex mutex_;
  Clock::time_point last_look_ = Clock::now();
  Clock::duration sum_ = Clock::duration::zero();
  std::jthread thread_;  ///< last: it ends before what it uses
};

/// Starts with its construction.
class Stopwatch {
 public:
  /// Without the time that this process did not get to run.
  std::chrono::milliseconds elapsed() const {
    const Standstill::Clock::duration stood_still = Standstill::of_this_process().so_far() - before_;
    return std::chrono::duration_cast<std::chrono::milliseconds>(Standstill::Clock::now() - began_ - stood_still);
  }

 private:
  Standstill::Clock::duration before_ = Standstill::of_this_process().so_far();
  Standstill::Clock::time_point began_ = Standstill::Clock::now();
};

}  // namespace support
