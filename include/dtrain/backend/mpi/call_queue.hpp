#pragma once
/// @file
/// CallQueue: calls of other threads to the thread that initialised MPI.

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Threads: push() from any, the rest from the thread that makes the calls. That thread sleeps while the queue is
/// empty.
class CallQueue {
 public:
  void push(std::function<void()> call) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(call));
    }
    number_.fetch_add(1);
    if (asleep_.load()) {
      futex_wake_all(number_, FutexScope::process);
    }
  }

  /// @returns the calls that were pushed since the last take()
  std::vector<std::function<void()>> take() {
    const std::uint32_t number = number_.load(std::memory_order_acquire);
    if (number == taken_number_) {
      return {};
    }
    taken_number_ = number;
    const std::lock_guard lock(mutex_);
    return std::exchange(waiting_, {});
  }

  /// Blocking: until there is a call that was not taken, or the deadline passes.
  void sleep(Deadline deadline) noexcept {
    asleep_.store(true);
    futex_wait(number_, taken_number_, deadline, FutexScope::process);  // returns at once if the number has changed
    asleep_.store(false);
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> waiting_;
  std::atomic<std::uint32_t> number_{0};  ///< of calls pushed
  std::atomic<bool> asleep_{false};
  std::uint32_t taken_number_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi
