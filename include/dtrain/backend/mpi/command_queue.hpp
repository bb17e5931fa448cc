#pragma once
/// @file
/// CommandQueue: commands of other threads to the thread that owns MPI.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

struct RunningRoutine;

/// Starts a routine, cancels one, or makes a call.
struct Command {
  RunningRoutine* start = nullptr;
  RunningRoutine* cancel = nullptr;
  std::function<void()> call{};
};

/// Threads: push() from any, the rest from the thread that executes. That thread sleeps while the queue is empty.
class CommandQueue {
 public:
  CommandQueue() {
    waiting_.reserve(usual);
    taken_commands_.reserve(usual);
  }

  /// Allocates only if more than `usual` commands wait, or for a large call.
  void push(Command command) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(command));
    }
    number_.fetch_add(1);
    if (asleep_.load()) {
      futex_wake_all(number_, FutexScope::process);
    }
  }

  /// Calls `each(Command&)` for each queued command. @returns whether there was any
  template <class Each>
  bool take(Each each) {
    const std::uint32_t number = number_.load(std::memory_order_acquire);
    if (number == taken_number_) {
      return false;
    }
    taken_number_ = number;
    {
      const std::lock_guard lock(mutex_);
      taken_commands_.swap(waiting_);
    }
    for (Command& command : taken_commands_) {
      each(command);
    }
    taken_commands_.clear();
    return true;
  }

  /// Blocking: until there is a command that was not taken, or the deadline passes.
  void sleep(Deadline deadline) noexcept {
    asleep_.store(true);
    futex_wait(number_, taken_number_, deadline, FutexScope::process);  // returns at once if the number has changed
    asleep_.store(false);
  }

 private:
  static constexpr std::size_t usual = 64;

  std::mutex mutex_;
  std::vector<Command> waiting_;
  std::vector<Command> taken_commands_;
  std::atomic<std::uint32_t> number_{0};  ///< of commands pushed
  std::atomic<bool> asleep_{false};
  std::uint32_t taken_number_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi
