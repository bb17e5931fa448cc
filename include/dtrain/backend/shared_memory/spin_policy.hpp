#pragma once
/// @file
/// SpinPolicy: how long a waiting rank spins and yields before it sleeps.

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/core/futex.hpp"
#include "dtrain/stream/host/progress.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Spins first, in case the peer runs on another core; then yields, in case the peer needs this core.
///
/// The scheduler may leave two ranks on one core while another is idle. Both look busy, so it moves neither, and every
/// barrier costs a thread switch. A thread that sleeps is placed anew when it is woken, on an idle core if there is
/// one. Hence a rank that finds its peer on its own core sleeps at once, every 2 ms at most: without an idle core, a
/// sleep moves no thread, and a wake-up costs more than a yield. Threads: the one that runs the channel's work.
class SpinPolicy {
 public:
  explicit SpinPolicy(int ranks)
      : cores_suffice_(stream::host::cores_of_all_ranks() >= ranks), spins_(cores_suffice_ ? 200 : 5) {}

  /// Spins or yields once. @param turn from 0, counted by the caller @returns false if the caller is to sleep
  bool spin_once(int& turn, const ControlBlock& control, int rank, int peer) noexcept {
    if (turn == first_look && cores_suffice_ && on_one_core(control.slot(rank), control.slot(peer))) {
      if (may_sleep()) {
        return false;
      }
      turn = spins_;
    }
    if (turn < spins_) {
      spin_pause();
    } else {
      static_cast<void>(::sched_yield());
    }
    return ++turn < spins_ + yields;
  }

 private:
  static constexpr int first_look = 20;
  static constexpr int yields = 50;

  /// Publishes the core that this rank waits on, and reads that of the peer.
  static bool on_one_core(RankSlot& own, const RankSlot& peer) noexcept {
    const auto core = static_cast<std::uint32_t>(::sched_getcpu() + 1);
    own.core.store(core, std::memory_order_relaxed);
    return core != 0 && peer.core.load(std::memory_order_relaxed) == core;
  }

  bool may_sleep() noexcept {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_sleep_) {
      return false;
    }
    next_sleep_ = now + std::chrono::milliseconds(2);
    return true;
  }

  const bool cores_suffice_;
  const int spins_;  ///< few where ranks outnumber cores: the awaited rank may need the core
  std::chrono::steady_clock::time_point next_sleep_{};
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
