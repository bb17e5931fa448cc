#pragma once
/// @file
/// Arriving at a meeting, and sleeping until a peer has arrived.

#include <atomic>
#include <chrono>
#include <cstdint>

#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Wakes the peers that sleep for the slot's rank; costs nothing where nobody does.
inline void wake_sleepers(Slot& slot) noexcept {
  if (slot.sleepers.load() != 0) {
    futex_wake_all(slot.arrived, FutexScope::shared);
  }
}

/// Says that the slot's rank has come to `meeting`. The store and the read of the sleepers' number are sequentially
/// consistent, as is what a sleeper does in the other order: one of both sees the other.
inline void arrive(Slot& slot, std::uint32_t meeting) noexcept {
  slot.arrived.store(meeting);
  wake_sleepers(slot);
}

/// Says that the slot's rank comes to no further meeting.
inline void leave(Slot& slot, SlotState state) noexcept {
  slot.state.store(state);
  wake_sleepers(slot);
}

inline bool has_arrived(const Slot& slot, std::uint32_t meeting) noexcept {
  return static_cast<std::int32_t>(slot.arrived.load() - meeting) >= 0;  // the count may wrap
}

/// The sleep of one rank's running thread, which any thread of that rank can end.
class Sleeper {
 public:
  /// Until the peer has arrived or left, wake() was called after `stop` was set, or 20 ms have passed: a wake that just
  /// misses the sleeper, or a peer that was killed, costs no more.
  void sleep(Slot& peer, std::uint32_t meeting, const std::atomic<bool>& stop, Deadline deadline) noexcept {
    const Deadline slice = earlier(deadline, Deadline::after(std::chrono::milliseconds(20)));
    peer.sleepers.fetch_add(1);
    const std::uint32_t seen = peer.arrived.load();
    if (!has_arrived(peer, meeting) && peer.state.load() == SlotState::serving) {
      sleeping_on_.store(&peer.arrived);
      if (!stop.load()) {
        futex_wait(peer.arrived, seen, slice, FutexScope::shared);
      }
      sleeping_on_.store(nullptr);
    }
    peer.sleepers.fetch_sub(1);
  }

  /// Threads: any.
  void wake() const noexcept {
    if (const std::atomic<std::uint32_t>* word = sleeping_on_.load()) {
      futex_wake_all(*word, FutexScope::shared);
    }
  }

 private:
  std::atomic<const std::atomic<std::uint32_t>*> sleeping_on_{nullptr};
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
