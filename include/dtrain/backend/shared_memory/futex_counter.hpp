#pragma once
/// @file
/// FutexCounter: a counter in shared memory on which ranks sleep until it changes.

#include <atomic>
#include <cstdint>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Zeroed memory is a valid counter. A rank first writes the data that it announces, changes `count`, then reads
/// `waiters`. A waiter increments `waiters`, then reads `count`. These are sequentially consistent, so at least one of
/// the two sees the other's change.
struct FutexCounter {
  std::atomic<std::uint32_t> count{0};    ///< the word that waiters sleep on
  std::atomic<std::uint32_t> waiters{0};  ///< ranks that sleep or are about to

  void set(std::uint32_t value) noexcept {
    count.store(value);
    wake();
  }
  void increment() noexcept {
    count.fetch_add(1);
    wake();
  }
  /// Makes no system call if no rank sleeps.
  void wake() noexcept {
    if (waiters.load() != 0) {
      futex_wake_all(count, FutexScope::shared);
    }
  }
};

/// The sleep of a rank's working thread, which any thread of that rank can end.
class FutexWaiter {
 public:
  /// Sleeps until the counter changes, wake() is called after `stop` was set, or the deadline passes. The deadline is
  /// short, so that a wake that just misses the waiter, or a killed peer, costs no more. Returns at once unless
  /// `may_sleep()`, which is called when no later change can be missed.
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
