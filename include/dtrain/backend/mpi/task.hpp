#pragma once
/// @file
/// A routine that one thread waits for and another one, which owns MPI, runs.

#include <atomic>
#include <cstdint>

#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

class Endpoint;

/// Where the thread that waits for a channel's work sleeps. Threads: `sleep` from one, `ring` from any.
/// Lifetime: outlives whoever rings.
class Bell {
 public:
  /// Blocking: until it rings or the deadline passes; not at all where `ready()` holds.
  template <class Ready>
  void sleep(Deadline deadline, Ready ready) noexcept {
    word_.store(asleep);
    if (!ready()) {
      futex_wait(word_, asleep, deadline, FutexScope::process);
    }
    word_.store(awake);
  }

  void ring() noexcept {
    if (word_.exchange(awake) == asleep) {
      futex_wake_all(word_, FutexScope::process);
    }
  }

 private:
  enum State : std::uint32_t { awake, asleep };
  std::atomic<std::uint32_t> word_{awake};
};

/// Lifetime: until it has ended.
struct Task {
  Endpoint& endpoint;
  message_passing::Routine& routine;
  Bell& bell;
  std::atomic<bool> ended{false};  ///< nothing touches the operation's memory any more, unless memory_is_lost
  bool memory_is_lost = false;     ///< MPI could not be made to let go of it; to be read once it has ended
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi
