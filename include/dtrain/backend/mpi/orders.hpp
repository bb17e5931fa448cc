#pragma once
/// @file
/// What threads want of the one that owns MPI.

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

struct Task;

/// One of three things: to start a task, to give one up, or to make a call.
struct Order {
  Task* start = nullptr;
  Task* give_up = nullptr;
  std::function<void()> call{};
};

/// Threads: `give` from any, the rest from the one that carries out. It sleeps while there is nothing to do.
class Orders {
 public:
  Orders() {
    waiting_.reserve(usual);
    taken_orders_.reserve(usual);
  }

  /// Allocates only where more than `usual` orders wait, or for a call that is large.
  void give(Order order) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(order));
    }
    number_.fetch_add(1);
    if (asleep_.load()) {
      futex_wake_all(number_, FutexScope::process);
    }
  }

  /// Calls `each(Order&)` for what has come. @returns whether there was any
  template <class Each>
  bool take(Each each) {
    const std::uint32_t number = number_.load(std::memory_order_acquire);
    if (number == taken_) {
      return false;
    }
    taken_ = number;
    {
      const std::lock_guard lock(mutex_);
      taken_orders_.swap(waiting_);
    }
    for (Order& order : taken_orders_) {
      each(order);
    }
    taken_orders_.clear();
    return true;
  }

  /// Blocking: until there is an order that was not taken, or the deadline passes.
  void sleep(Deadline deadline) noexcept {
    asleep_.store(true);
    futex_wait(number_, taken_, deadline, FutexScope::process);  // returns at once where the number has changed
    asleep_.store(false);
  }

 private:
  static constexpr std::size_t usual = 64;

  std::mutex mutex_;
  std::vector<Order> waiting_;
  std::vector<Order> taken_orders_;
  std::atomic<std::uint32_t> number_{0};  ///< of orders given
  std::atomic<bool> asleep_{false};
  std::uint32_t taken_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi
