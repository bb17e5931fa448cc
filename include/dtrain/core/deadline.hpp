#pragma once
/// @file
/// Deadline: the point in time at which a wait ends; every wait in dtrain has one.

#include <algorithm>
#include <chrono>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// A steady-clock instant. There is no "never": a caller names a long timeout explicitly.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// A timeout beyond the clock's range ends at the clock's maximum.
  static Deadline after(Clock::duration timeout) {
    const Clock::time_point now = Clock::now();
    return Deadline(timeout < Clock::time_point::max() - now ? now + timeout : Clock::time_point::max());
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

}  // namespace DTRAIN_NAMESPACE
