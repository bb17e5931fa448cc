#pragma once
/// @file
/// Whether the thread that owns MPI is inside a call to it, for those who wait for that thread.

#include <atomic>
#include <chrono>
#include <cstdint>

#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Counts a call's beginning and its end; calls do not nest. Threads: Inside in the one that owns MPI, number() from
/// any.
class Calls {
 public:
  class Inside {
   public:
    explicit Inside(Calls& calls) noexcept : calls_(calls) { calls_.number_.fetch_add(1, std::memory_order_relaxed); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() { calls_.number_.fetch_add(1, std::memory_order_relaxed); }

   private:
    Calls& calls_;
  };

  /// Odd inside a call.
  std::uint64_t number() const noexcept { return number_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> number_{0};
};

/// Tells a call that does not come back from a thread that is busy: reducing, or without a core.
class CallWatch {
 public:
  CallWatch(const Calls& calls, std::chrono::milliseconds patience) noexcept
      : calls_(calls), patience_(patience), seen_(calls.number()), until_(Deadline::after(patience)) {}

  /// Whether all the time since an earlier look, `patience` ago or more, was spent in one call.
  bool hangs() noexcept {
    const std::uint64_t now = calls_.number();
    if (now != seen_ || now % 2 == 0) {
      seen_ = now;
      until_ = Deadline::after(patience_);
    }
    return until_.passed();
  }

 private:
  const Calls& calls_;
  const std::chrono::milliseconds patience_;
  std::uint64_t seen_;
  Deadline until_;
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi
