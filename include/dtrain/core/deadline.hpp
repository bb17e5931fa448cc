#pragma once
/// @file
/// Deadline: the instant at which a wait ends; every wait has one, or names what ends it.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>

#include "dtrain/core/config.hpp"
#include "dtrain/core/wait_time.hpp"

namespace DTRAIN_NAMESPACE {

/// A steady-clock instant. A wait that something else is certain to end says what, by unbounded().
/// @ingroup errors
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// A timeout beyond the clock's range ends at the clock's maximum.
  static Deadline after(Clock::duration timeout) {
    const Clock::time_point now = Clock::now();
    return Deadline(timeout < Clock::time_point::max() - now ? now + timeout : Clock::time_point::max());
  }
  /// Never passes. @param reason a literal: why the wait ends all the same
  template <std::size_t N>
  static constexpr Deadline unbounded(const char (&reason)[N]) {
    static_assert(N > 1, "dtrain: say why the wait ends");
    static_cast<void>(reason);
    return Deadline(Clock::time_point::max());
  }
  static constexpr Deadline at(Clock::time_point instant) { return Deadline(instant); }

  bool passed() const { return Clock::now() >= instant_; }

  /// Time left, never negative.
  Clock::duration remaining() const { return std::max(Clock::duration::zero(), instant_ - Clock::now()); }

  constexpr Clock::time_point instant() const { return instant_; }

  /// The earlier, and the later of two deadlines.
  friend constexpr Deadline earlier(Deadline a, Deadline b) { return a.instant_ < b.instant_ ? a : b; }
  friend constexpr Deadline later(Deadline a, Deadline b) { return a.instant_ < b.instant_ ? b : a; }

 private:
  explicit constexpr Deadline(Clock::time_point instant) : instant_(instant) {}

  Clock::time_point instant_;
};

/// The deadline plus 3 s, for a blocking call around a task that itself keeps the deadline. The task then times out
/// first, and its error names what it waited for.
inline Deadline with_grace(Deadline deadline) {
  constexpr std::chrono::seconds moment(3);
  const bool has_room = deadline.instant() < Deadline::Clock::time_point::max() - moment;
  return has_room ? Deadline::at(deadline.instant() + moment) : deadline;
}

/// Blocking: until `ready()` holds or the deadline passes. Calls `ready()` with `lock` held. @returns its last result
template <class Ready>
bool block_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Deadline deadline, Ready ready) {
  while (!ready() && !deadline.passed()) {
    // An old libstdc++ converts the instant to the system's clock, where one far away overflows.
    const auto left = std::min<Deadline::Clock::duration>(deadline.remaining(), std::chrono::hours(1));
    const WaitTime wait;
    if constexpr (DTRAIN_THREAD_SANITIZER != 0) {  // g++ 12's does not know the wait on the steady clock
      changed.wait_until(lock, std::chrono::system_clock::now() + left);
    } else {
      changed.wait_until(lock, Deadline::Clock::now() + left);
    }
  }
  return ready();
}

}  // namespace DTRAIN_NAMESPACE
