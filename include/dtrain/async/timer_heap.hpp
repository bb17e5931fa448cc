#pragma once
/// @file
/// TimerHeap of a Scheduler: a binary heap of timers. Waiter: a suspended coroutine in the timers and in one list.

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/async/intrusive_list.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::async {

class TaskRecord;

/// Why a suspended coroutine was resumed; `ready` wins if both hold.
enum class WakeReason : std::uint8_t { ready = 1, timed_out };

/// Base of the awaiters. It is in the coroutine's frame, so suspending allocates nothing (the timers' array may grow).
/// An awaiter calls Scheduler::remove in its destructor.
class Waiter : public ListNode {
 public:
  static constexpr std::size_t not_in_heap = static_cast<std::size_t>(-1);

  DTRAIN_NOT_INLINED Waiter() noexcept = default;

  std::coroutine_handle<> coroutine;
  TaskRecord* record = nullptr;  ///< the spawned task that the coroutine belongs to
  int descriptor = -1;           ///< the descriptor that it waits for, if any
  WakeReason outcome = WakeReason::ready;

  /// @name The timer. A timer stores its index in the heap, so that a cancelled timer is removed at once.
  /// @{
  Deadline::Clock::time_point instant{};
  std::uint64_t sequence = 0;
  std::size_t index = not_in_heap;
  /// @}
};

/// Timers ordered by instant, equal ones by insertion. Lifetime: a timer is removed before it is destroyed.
class TimerHeap {
 public:
  bool empty() const noexcept { return heap_.empty(); }
  std::size_t size() const noexcept { return heap_.size(); }

  /// Adds a timer that is in no heap.
  void insert(Waiter& timer, Deadline deadline);

  /// Removes a timer; no effect on one that is not in the heap.
  void remove(Waiter& timer) noexcept;

  /// The earliest timer, or nullptr.
  Waiter* earliest() const noexcept { return heap_.empty() ? nullptr : heap_.front(); }

 private:
  static std::size_t parent_of(std::size_t index) noexcept { return (index - 1) / 2; }

  static bool before(const Waiter& a, const Waiter& b) noexcept {
    return a.instant != b.instant ? a.instant < b.instant : a.sequence < b.sequence;
  }

  void put(std::size_t index, Waiter& timer) noexcept {
    heap_[index] = &timer;
    timer.index = index;
  }

  void sift_up(std::size_t index, Waiter& timer) noexcept;

  void sift_down(std::size_t index, Waiter& timer) noexcept;

  std::vector<Waiter*> heap_;
  std::uint64_t next_sequence_ = 0;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void TimerHeap::insert(Waiter& timer, Deadline deadline) {
  heap_.push_back(&timer);
  timer.instant = deadline.instant();
  timer.sequence = next_sequence_++;
  sift_up(heap_.size() - 1, timer);
}

DTRAIN_DEFINED void TimerHeap::remove(Waiter& timer) noexcept {
  if (timer.index == Waiter::not_in_heap) {
    return;
  }
  const std::size_t hole = timer.index;
  timer.index = Waiter::not_in_heap;
  Waiter& last = *heap_.back();
  heap_.pop_back();
  if (hole == heap_.size()) {
    return;  // the removed timer was the last one
  }
  if (hole > 0 && before(last, *heap_[parent_of(hole)])) {
    sift_up(hole, last);
  } else {
    sift_down(hole, last);
  }
}

DTRAIN_DEFINED void TimerHeap::sift_up(std::size_t index, Waiter& timer) noexcept {
  while (index > 0 && before(timer, *heap_[parent_of(index)])) {
    put(index, *heap_[parent_of(index)]);
    index = parent_of(index);
  }
  put(index, timer);
}

DTRAIN_DEFINED void TimerHeap::sift_down(std::size_t index, Waiter& timer) noexcept {
  for (std::size_t child = 2 * index + 1; child < heap_.size(); child = 2 * index + 1) {
    if (child + 1 < heap_.size() && before(*heap_[child + 1], *heap_[child])) {
      ++child;
    }
    if (!before(*heap_[child], timer)) {
      break;
    }
    put(index, *heap_[child]);
    index = child;
  }
  put(index, timer);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::async
