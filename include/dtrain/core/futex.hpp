#pragma once
/// @file
/// Futexes: waits on a 32-bit word until a Deadline, and wake-ups, within a process or between processes.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/wait_time.hpp"

namespace DTRAIN_NAMESPACE {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free,
              "dtrain: a futex needs a lock-free 32-bit atomic");

/// Waiters of a word: threads of one process, or of every process that has mapped it. std::atomic::wait supports only
/// the first: it never wakes another process.
enum class FutexScope : int { process = FUTEX_PRIVATE_FLAG, shared = 0 };

/// After `awake` the caller checks its condition again: wake-ups may be spurious.
enum class FutexResult { awake, timed_out };

/// Blocking: sleeps while `word` equals `expected`, until a thread wakes the word or the deadline passes. Signals of
/// the operating system do not end the wait. Returns at once if the word differs.
inline FutexResult futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Deadline deadline,
                              FutexScope scope) noexcept {
  using std::chrono::nanoseconds;
  const WaitTime wait;
  // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which is the steady clock: a retry costs no
  // arithmetic.
  const auto instant = std::chrono::duration_cast<nanoseconds>(deadline.instant().time_since_epoch()).count();
  timespec until{};
  until.tv_sec = static_cast<time_t>(instant > 0 ? instant / 1'000'000'000 : 0);
  until.tv_nsec = static_cast<long>(instant > 0 ? instant % 1'000'000'000 : 0);
  const int operation = FUTEX_WAIT_BITSET | static_cast<int>(scope);
  while (::syscall(SYS_futex, &word, operation, expected, &until, nullptr, FUTEX_BITSET_MATCH_ANY) != 0) {
    if (errno != EINTR) {
      return errno == ETIMEDOUT ? FutexResult::timed_out : FutexResult::awake;  // EAGAIN: the word differs
    }
  }
  return FutexResult::awake;
}

/// Wakes up to `count` threads that sleep on the word. The word need not exist any more: then it wakes none.
/// @returns how many were woken
inline int futex_wake(const std::atomic<std::uint32_t>& word, int count, FutexScope scope) noexcept {
  const long woken = ::syscall(SYS_futex, &word, FUTEX_WAKE | static_cast<int>(scope), count, nullptr, nullptr, 0);
  return woken > 0 ? static_cast<int>(woken) : 0;
}

/// Wakes all threads that sleep on the word. @returns how many were woken
inline int futex_wake_all(const std::atomic<std::uint32_t>& word, FutexScope scope) noexcept {
  return futex_wake(word, INT_MAX, scope);
}

/// Hint to the processor that the thread spins.
inline void spin_pause() noexcept {
#if DTRAIN_X86_64
  __asm__ __volatile__("pause");
#elif DTRAIN_ARM64
  __asm__ __volatile__("yield");
#endif
}

}  // namespace DTRAIN_NAMESPACE
