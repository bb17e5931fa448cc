#pragma once
/// @file
/// RunningRoutine: a routine over MPI's messages, and the thread that waits for it.

#include <atomic>
#include <cstdint>
#include <string>

#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

class Endpoint;

/// Futex of the thread that waits for a channel's routine. Threads: sleep() from one, notify() from any.
/// Lifetime: outlives every thread that calls notify().
class Wakeup {
 public:
  /// Blocking: until notify() or the deadline; returns at once if `is_ready()`.
  template <class IsReady>
  void sleep(Deadline deadline, IsReady is_ready) noexcept {
    word_.store(asleep);
    if (!is_ready()) {
      futex_wait(word_, asleep, deadline, FutexScope::process);
    }
    word_.store(awake);
  }

  void notify() noexcept {
    if (word_.load(std::memory_order_seq_cst) == asleep && word_.exchange(awake) == asleep) {
      futex_wake_all(word_, FutexScope::process);
    }
  }

 private:
  enum WaitState : std::uint32_t { awake, asleep };
  std::atomic<std::uint32_t> word_{awake};
};

/// Lifetime: until it has ended.
class RunningRoutine {
 public:
  RunningRoutine(Endpoint& of, message_passing::Routine& running, Wakeup& of_waiter) noexcept
      : endpoint(of), routine(running), wakeup(of_waiter) {}
  RunningRoutine(const RunningRoutine&) = delete;
  RunningRoutine& operator=(const RunningRoutine&) = delete;

  /// Whether the operation is aborted or its deadline has passed. Threads: any, until the routine is withdrawn.
  virtual bool should_end() const noexcept = 0;

  /// A sentence: why this rank ends. Threads: as should_end.
  virtual std::string reason() const = 0;

  Endpoint& endpoint;
  message_passing::Routine& routine;
  Wakeup& wakeup;
  std::atomic<bool> ended{false};  ///< the operation's memory is no longer used, unless memory_is_lost
  bool memory_is_lost = false;     ///< MPI still uses that memory; valid once `ended` is set

 protected:
  ~RunningRoutine() = default;
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi
