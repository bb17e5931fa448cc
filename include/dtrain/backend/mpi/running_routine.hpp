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

/// What the thread that waits for a channel's work sleeps on. Threads: `sleep` from one, `notify` from any.
/// Lifetime: outlives whoever notifies.
class Wakeup {
 public:
  /// Blocking: until notify() or the deadline; not at all where `is_ready()` holds.
  template <class IsReady>
  void sleep(Deadline deadline, IsReady is_ready) noexcept {
    word_.store(asleep);
    if (!is_ready()) {
      futex_wait(word_, asleep, deadline, FutexScope::process);
    }
    word_.store(awake);
  }

  void notify() noexcept {
    if (word_.exchange(awake) == asleep) {
      futex_wake_all(word_, FutexScope::process);
    }
  }

 private:
  enum WaitState : std::uint32_t { awake, asleep };
  std::atomic<std::uint32_t> word_{awake};
};

/// Lifetime: until it has ended.
struct RunningRoutine {
  Endpoint& endpoint;
  message_passing::Routine& routine;
  Wakeup& wakeup;
  std::atomic<bool> ended{false};  ///< nothing touches the operation's memory any more, unless memory_is_lost
  bool memory_is_lost = false;     ///< MPI could not be made to let go of it; to be read once it has ended
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi
