#pragma once
/// @file
/// BarrierWait: one rank's wait for its peers at a barrier, and the error if they do not arrive.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

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
