#pragma once
/// @file
/// BarrierWait: one rank's wait in shared memory for its peers at a barrier, and the error if they do not arrive;
/// SharedMemory's Channel waits by it. SpinPolicy: how long a rank spins and yields before it sleeps.

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/futex.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/stream/host/progress.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Spins first, in case the peer runs on another core; then yields, in case the peer needs this core.
///
/// The scheduler may leave two ranks on one core while another is idle. Both look busy, so the scheduler moves neither,
/// and every barrier costs a thread switch. A thread that wakes is placed on an idle core if there is one. Hence a rank
/// that finds its peer on its own core sleeps at once, every 2 ms at most: without an idle core, a sleep moves no
/// thread, and a wake-up costs more than a yield. Threads: the one that runs the channel's work.
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

/// Whether a counter of barriers has reached `barrier`; both may wrap.
inline bool has_reached(const std::atomic<std::uint32_t>& count, std::uint32_t barrier) noexcept {
  return static_cast<std::int32_t>(count.load() - barrier) >= 0;
}

inline bool has_arrived(const RankSlot& slot, std::uint32_t barrier) noexcept {
  return has_reached(slot.arrived.count, barrier);
}

/// The word that shows a peer's arrival, and the memory that is read right after it. Prefetching the memory during the
/// wait overlaps two transfers between cores.
struct ArrivalFlag {
  const std::atomic<std::uint32_t>* count;
  const void* next_read;
};

inline ArrivalFlag arrival_flag_of(const RankSlot& slot) noexcept {
  return {&slot.arrived.count, &slot.arrived.count};
}
inline ArrivalFlag arrival_flag_of(const OperationSlot& slot) noexcept {
  return {&slot.barrier, slot.long_input.data()};
}

/// The wait for one peer at a barrier; see Channel::wait.
struct BarrierWait {
  ControlBlock control;
  int ranks;
  std::uint32_t number;
  int awaited;       ///< the awaited peer
  ArrivalFlag flag;  ///< of the awaited peer

  bool done() const noexcept {
    if (has_reached(*flag.count, number)) {
      return true;
    }
    __builtin_prefetch(flag.next_read);
    return false;
  }
  int peer() const noexcept { return awaited; }
  bool may_sleep() const noexcept { return !done() && control.slot(awaited).state.load() == SlotState::serving; }
  FutexCounter& counter() const noexcept { return control.slot(awaited).arrived; }

  /// The cause if this barrier cannot complete: a peer failed before all ranks arrived, or left before it arrived
  /// itself. Checks all ranks, because the awaited peer may itself wait for such a peer.
  /// @param present names the operation; called on failure only, because it allocates
  template <class Present>
  std::optional<Cause> failure(const Present& present) const {
    for (int rank = 0; rank < ranks; ++rank) {
      const RankSlot& slot = control.slot(rank);
      const SlotState state = slot.state.load();
      if (state == SlotState::failed && !all_have_arrived()) {
        return slot.cause.load();
      }
      if (state == SlotState::closed && !has_arrived(slot, number)) {
        return Cause{CauseKind::disagreement, -1, "",
                     format_text("{} cannot be finished: rank {} has left the channel without calling it; every rank "
                                 "takes as many steps and calls the same collectives",
                                 {present(), control.job_rank(rank)})};
      }
    }
    return std::nullopt;
  }

  /// Error text: the missing ranks, those that have arrived, and the time waited.
  std::string missing(std::chrono::milliseconds waited) const {
    std::vector<int> here;
    std::vector<int> not_here;
    for (int rank = 0; rank < ranks; ++rank) {
      (has_arrived(control.slot(rank), number) ? here : not_here).push_back(control.job_rank(rank));
    }
    return format_text(
        "{} had not arrived after {} ms; {} had; does every rank call it? DTRAIN_TIMEOUT_SECONDS is how long it may "
        "take",
        {rendezvous::rank_list(not_here), waited.count(), rendezvous::rank_list(here)});
  }

 private:
  bool all_have_arrived() const noexcept {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!has_arrived(control.slot(rank), number)) {
        return false;
      }
    }
    return true;
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
