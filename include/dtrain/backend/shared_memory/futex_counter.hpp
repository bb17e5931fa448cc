#pragma once
/// @file
/// A counter in shared memory that ranks sleep on until it changes.

#include <atomic>
#include <cstdint>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Zeroed memory is a valid one. The rank that changes the count first writes what it announces; the change and the
/// read of `waiters` are sequentially consistent, as is what a waiter does in the other order: one of both sees the
/// other.
struct FutexCounter {
  std::atomic<std::uint32_t> count{0};    ///< the word that waiters sleep on
  std::atomic<std::uint32_t> waiters{0};  ///< no waiter, no wake

  void set(std::uint32_t value) noexcept {
    count.store(value);
    wake();
  }
  void increment() noexcept {
    count.fetch_add(1);
    wake();
  }
  /// Costs nothing where no rank sleeps.
  void wake() noexcept {
    if (waiters.load() != 0) {
      futex_wake_all(count, FutexScope::shared);
    }
  }
};

/// The sleep of one rank's running thread, which any thread of that rank can end.
class FutexWaiter {
 public:
  /// Until the counter changes, wake() was called after `stop` was set, or the deadline has passed: short, so that a
  /// wake that just misses the waiter, or a peer that was killed, costs no more. Returns at once unless `may_sleep()`,
  /// which is asked once every change is noticed.
  template <class F>
  void sleep(FutexCounter& counter, F may_sleep, const std::atomic<bool>& stop, Deadline deadline) noexcept {
    counter.waiters.fetch_add(1);
    const std::uint32_t seen = counter.count.load();
    if (may_sleep()) {
      sleeping_on_.store(&counter.count);
      if (!stop.load()) {
        futex_wait(counter.count, seen, deadline, FutexScope::shared);
      }
      sleeping_on_.store(nullptr);
    }
    counter.waiters.fetch_sub(1);
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
