#pragma once
/// @file
/// A meeting of all ranks of a channel: what one waits for, and what it says where the others do not come.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/rendezvous/rank_list.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Whether a count of meetings has come to `meeting`; it may wrap.
inline bool has_come_to(const std::atomic<std::uint32_t>& count, std::uint32_t meeting) noexcept {
  return static_cast<std::int32_t>(count.load() - meeting) >= 0;
}

inline bool has_arrived(const Slot& slot, std::uint32_t meeting) noexcept {
  return has_come_to(slot.arrived.count, meeting);
}

/// What shows that a peer has come, and what is read right after: fetched meanwhile, both take one way, not two.
struct Sign {
  const std::atomic<std::uint32_t>* count;
  const void* beside;
};

inline Sign sign_of(const Slot& slot) noexcept {
  return {&slot.arrived.count, &slot.arrived.count};
}
inline Sign sign_of(const Opening& opening) noexcept {
  return {&opening.meeting, opening.many.data()};
}

/// The wait for one peer at a meeting; see Channel::wait.
struct Meeting {
  ControlBlock control;
  int ranks;
  std::uint32_t number;
  int awaited;  ///< the peer that is waited for now
  Sign sign;    ///< the peer's

  bool done() const noexcept {
    if (has_come_to(*sign.count, number)) {
      return true;
    }
    __builtin_prefetch(sign.beside);
    return false;
  }
  int peer() const noexcept { return awaited; }
  bool may_sleep() const noexcept { return !done() && control.slot(awaited).state.load() == SlotState::serving; }
  Doorbell& bell() const noexcept { return control.slot(awaited).arrived; }

  /// Why this meeting cannot take place any more, if a peer failed or left. All are looked at: the one that is waited
  /// for may itself wait for such a peer. Who came first and then left spoils nothing. @param present names the
  /// operation, where that is wanted: a sentence costs memory
  template <class Present>
  std::optional<Cause> spoilt(const Present& present) const {
    for (int rank = 0; rank < ranks; ++rank) {
      const Slot& slot = control.slot(rank);
      const SlotState state = slot.state.load();
      if (state == SlotState::failed && !all_have_arrived()) {
        return slot.cause.load();
      }
      if (state == SlotState::closed && !has_arrived(slot, number)) {
        return Cause{CauseKind::disagreement, -1, "",
                     present() + " cannot be finished: rank " + std::to_string(control.job_rank(rank)) +
                         " has left the channel without calling it; every rank takes as many steps and calls the same "
                         "collectives"};
      }
    }
    return std::nullopt;
  }

  /// Who has come, who has not, and how long that has been so.
  std::string missing(std::chrono::milliseconds waited) const {
    std::vector<int> here;
    std::vector<int> not_here;
    for (int rank = 0; rank < ranks; ++rank) {
      (has_arrived(control.slot(rank), number) ? here : not_here).push_back(control.job_rank(rank));
    }
    return rendezvous::rank_list(not_here) + " had not arrived after " + std::to_string(waited.count()) + " ms; " +
           rendezvous::rank_list(here) +
           " had; does every rank call it? DTRAIN_TIMEOUT_SECONDS is how long it may take";
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
