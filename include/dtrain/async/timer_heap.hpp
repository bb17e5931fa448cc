#pragma once
/// @file
/// TimerHeap: timers in a binary heap; insertion and removal in logarithmic time.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::async {

/// One timer. It stores its index in the heap, so that a cancelled one is removed at once.
struct TimerNode {
  static constexpr std::size_t not_in_heap = static_cast<std::size_t>(-1);

  Deadline::Clock::time_point instant{};
  std::uint64_t sequence = 0;
  std::size_t index = not_in_heap;
};

/// Timers ordered by instant, equal ones by insertion. Lifetime: a timer is removed before it is destroyed.
class TimerHeap {
 public:
  bool empty() const noexcept { return heap_.empty(); }
  std::size_t size() const noexcept { return heap_.size(); }

  /// Adds a timer that is in no heap.
  void insert(TimerNode& timer, Deadline deadline);

  /// Removes a timer; no effect on one that is not in the heap.
  void remove(TimerNode& timer) noexcept;

  /// The earliest timer, or nullptr.
  TimerNode* earliest() const noexcept { return heap_.empty() ? nullptr : heap_.front(); }

 private:
  static std::size_t parent_of(std::size_t index) noexcept { return (index - 1) / 2; }

  static bool before(const TimerNode& a, const TimerNode& b) noexcept {
    return a.instant != b.instant ? a.instant < b.instant : a.sequence < b.sequence;
  }

  void put(std::size_t index, TimerNode& timer) noexcept {
    heap_[index] = &timer;
    timer.index = index;
  }

  void sift_up(std::size_t index, TimerNode& timer) noexcept;

  void sift_down(std::size_t index, TimerNode& timer) noexcept;

  std::vector<TimerNode*> heap_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::async

#if DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE::async {

DTRAIN_DEFINED void TimerHeap::insert(TimerNode& timer, Deadline deadline) {
  heap_.push_back(&timer);
  timer.instant = deadline.instant();
  timer.sequence = next_sequence_++;
  sift_up(heap_.size() - 1, timer);
}

DTRAIN_DEFINED void TimerHeap::remove(TimerNode& timer) noexcept {
  if (timer.index == TimerNode::not_in_heap) {
    return;
  }
  const std::size_t hole = timer.index;
  timer.index = TimerNode::not_in_heap;
  TimerNode& last = *heap_.back();
  heap_.pop_back();
  if (hole == heap_.size()) {
    return;  // it was the last one itself
  }
  if (hole > 0 && before(last, *heap_[parent_of(hole)])) {
    sift_up(hole, last);
  } else {
    sift_down(hole, last);
  }
}

DTRAIN_DEFINED void TimerHeap::sift_up(std::size_t index, TimerNode& timer) noexcept {
  while (index > 0 && before(timer, *heap_[parent_of(index)])) {
    put(index, *heap_[parent_of(index)]);
    index = parent_of(index);
  }
  put(index, timer);
}

DTRAIN_DEFINED void TimerHeap::sift_down(std::size_t index, TimerNode& timer) noexcept {
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

}  // namespace DTRAIN_NAMESPACE::async

#endif  // DTRAIN_DEFINITIONS
