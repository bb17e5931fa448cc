#pragma once
/// @file
/// Parks a thread on a word: with futexes, in which ThreadSanitizer sees no order, unlike in mutexes.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace emulation {

/// Sleeps while `word` is `seen`, at most 2 ms, and now and then for no reason. The word may be shared by processes.
inline void park(const std::atomic<std::uint32_t>& word, std::uint32_t seen) noexcept {
  const timespec patience{0, 2'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &patience, nullptr, 0);
}

inline void wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// Returns when `is_done()`, which another thread makes true before it changes `counter` and wakes. The counter itself
/// orders nothing: only what `is_done` reads does.
template <class IsDone>
void wait_until(const std::atomic<std::uint32_t>& counter, IsDone is_done) noexcept {
  for (int tries = 0; tries < 100; ++tries) {
    if (is_done()) return;
  }
  for (;;) {
    const std::uint32_t seen = counter.load(std::memory_order_relaxed);
    if (is_done()) return;
    park(counter, seen);
  }
}

inline void notify(std::atomic<std::uint32_t>& counter) noexcept {
  counter.fetch_add(1, std::memory_order_relaxed);
  wake_all(counter);
}

}  // namespace emulation
