#pragma once
/// @file
/// WaitPace: how a thread that waits for messages spins, yields and sleeps.

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Spins first, then yields in case a peer needs the core, then sleeps: the longer nothing moves, the longer.
/// The clock is not read while it spins. Threads: one.
class WaitPace {
 public:
  enum class WaitAction : std::uint8_t { spin, yield, sleep };

  /// Something has moved.
  void reset() noexcept { turn_ = 0; }

  WaitAction next() noexcept {
    ++all_turns_;
    if (++turn_ <= spins && all_turns_ % longest_spin != 0) {
      return WaitAction::spin;
    }
    now_ = Clock::now();
    if (turn_ <= spins + 1) {
      moved_at_ = now_;
    }
    return now_ - moved_at_ < yield_time ? WaitAction::yield : WaitAction::sleep;
  }

  /// See CancellationToken::stalled. Reads the clock of the last next() that did not spin.
  bool stall_is_due() noexcept {
    if (stall_at_ == Clock::time_point{}) {
      stall_at_ = now_ + std::chrono::milliseconds(1);
    }
    if (now_ < stall_at_) {
      return false;
    }
    stall_at_ = now_ + std::chrono::milliseconds(20);
    return true;
  }

  Deadline sleep_deadline() const noexcept {
    return Deadline::after(
        std::clamp<std::chrono::nanoseconds>((now_ - moved_at_) / 16, shortest_sleep, longest_sleep));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int spins = 100;
  static constexpr std::uint64_t longest_spin = 4096;  ///< turns until the clock is read, also while messages arrive
  static constexpr std::chrono::microseconds yield_time{300};
  static constexpr std::chrono::microseconds shortest_sleep{20};
  static constexpr std::chrono::microseconds longest_sleep{200};

  int turn_ = 0;
  std::uint64_t all_turns_ = 0;
  Clock::time_point now_{};
  Clock::time_point moved_at_{};
  Clock::time_point stall_at_{};
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi
