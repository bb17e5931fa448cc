#pragma once
/// @file
/// The step recorder: a fixed ring of step records that any thread writes.

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/ddp/profile/step_record.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The latest records overwrite the oldest. Allocates at construction only. Threads: `note` concurrently, from any;
/// `records` too, which leaves out what is being written meanwhile.
class StepRecorder {
 public:
  /// @param capacity of records; rounded up to a power of two
  explicit StepRecorder(std::size_t capacity) : slots_(std::bit_ceil(capacity < 2 ? std::size_t{2} : capacity)) {}

  std::size_t capacity() const noexcept { return slots_.size(); }

  void note(std::uint64_t step, StepEvent event, std::size_t index) noexcept {
    note(step, event, index, StepRecord::Clock::now());
  }

  void note(std::uint64_t step, StepEvent event, std::size_t index, StepRecord::Clock::time_point time) noexcept {
    const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
    RecordSlot& slot = slots_[number & (slots_.size() - 1)];
    const std::uint64_t before = slot.number.exchange(busy, std::memory_order_acquire);
    if (before == busy) {
      return;  // a thread was stopped here for a whole turn of the ring; it writes, this record is dropped
    }
    // A reader that meets a record half written sees another number before it or after it.
    slot.step.store(step, std::memory_order_release);
    slot.what.store(static_cast<std::uint64_t>(index) << 8 | static_cast<std::uint64_t>(event),
                    std::memory_order_release);
    slot.time.store(time.time_since_epoch().count(), std::memory_order_release);
    slot.number.store(number + 1, std::memory_order_release);
  }

  /// Those that are still here, in the order in which they were written, of steps from `first_step` on. Allocates.
  std::vector<StepRecord> records(std::uint64_t first_step = 0) const {
    std::vector<StepRecord> found;
    const std::uint64_t end = next_.load(std::memory_order_acquire);
    const std::uint64_t begin = end > slots_.size() ? end - slots_.size() : 0;
    found.reserve(static_cast<std::size_t>(end - begin));
    for (std::uint64_t number = begin; number < end; ++number) {
      StepRecord record;
      if (read(number, record) && record.step >= first_step) {
        found.push_back(record);
      }
    }
    return found;
  }

  /// How many were ever written: where it is above the capacity, the oldest are gone.
  std::uint64_t written() const noexcept { return next_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t busy = ~std::uint64_t{0};

  struct RecordSlot {
    std::atomic<std::uint64_t> number{0};  ///< of the record it holds, from 1; 0 for none
    std::atomic<std::uint64_t> step{0};
    std::atomic<std::uint64_t> what{0};
    std::atomic<std::int64_t> time{0};
  };

  bool read(std::uint64_t number, StepRecord& record) const noexcept {
    const RecordSlot& slot = slots_[number & (slots_.size() - 1)];
    if (slot.number.load(std::memory_order_acquire) != number + 1) {
      return false;
    }
    record.step = slot.step.load(std::memory_order_acquire);
    const std::uint64_t what = slot.what.load(std::memory_order_acquire);
    record.index = static_cast<std::uint32_t>(what >> 8);
    record.event = static_cast<StepEvent>(what & 0xff);
    record.time = StepRecord::Clock::time_point(StepRecord::Clock::duration(slot.time.load(std::memory_order_acquire)));
    return slot.number.load(std::memory_order_relaxed) == number + 1;
  }

  std::vector<RecordSlot> slots_;
  std::atomic<std::uint64_t> next_{0};
};

}  // namespace DTRAIN_NAMESPACE::ddp
