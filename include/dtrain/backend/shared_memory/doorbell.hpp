#pragma once
/// @file
/// A counter in shared memory that ranks sleep on until it changes.

#include <atomic>
#include <cstdint>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Zeroed memory is a valid one. Whoever changes the count first writes what it announces; the change and the read of
/// the sleepers' number are sequentially consistent, as is what a sleeper does in the other order: one of both sees the
/// other.
struct Doorbell {
  std::atomic<std::uint32_t> count{0};     ///< the word that sleepers sleep on
  std::atomic<std::uint32_t> sleepers{0};  ///< nobody asleep, no wake

  void set(std::uint32_t value) noexcept {
    count.store(value);
    wake();
  }
  void ring() noexcept {
    count.fetch_add(1);
    wake();
  }
  /// Costs nothing where nobody sleeps.
  void wake() noexcept {
    if (sleepers.load() != 0) {
      futex_wake_all(count, FutexScope::shared);
    }
  }
};

/// The sleep of one rank's running thread, which any thread of that rank can end.
class Sleeper {
 public:
  /// Until the bell rings, wake() was called after `stop` was set, or the deadline has passed: short, so that a wake
  /// that just misses the sleeper, or a peer that was killed, costs no more. Returns at once unless `may_sleep()`,
  /// which is asked when every ring is noticed.
  template <class F>
  void sleep(Doorbell& bell, F may_sleep, const std::atomic<bool>& stop, Deadline deadline) noexcept {
    bell.sleepers.fetch_add(1);
    const std::uint32_t seen = bell.count.load();
    if (may_sleep()) {
      sleeping_on_.store(&bell.count);
      if (!stop.load()) {
        futex_wait(bell.count, seen, deadline, FutexScope::shared);
      }
      sleeping_on_.store(nullptr);
    }
    bell.sleepers.fetch_sub(1);
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
