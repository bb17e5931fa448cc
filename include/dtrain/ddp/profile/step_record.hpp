#pragma once
/// @file
/// StepRecord: one event of a training step, and its time. StepRecorder: lock-free ring of them, of fixed size.

#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Events of each step, in time: one `begun`; for each parameter `ready`; for each bucket `launched`, `started`,
/// `reduced`; one `waiting`; one `finished`.
/// @ingroup times
enum class StepEvent : std::uint8_t {
  begun = 1,  ///< begin() was called; the time before is the program's
  ready,      ///< a gradient is ready; only if every ready() is recorded (DdpOptions::timeline)
  launched,   ///< the bucket's collective was enqueued
  started,    ///< the communication stream has reached the bucket
  reduced,    ///< the communication stream has completed the bucket
  waiting,    ///< finish() was called; later communication is not hidden
  finished,   ///< finish() returned
};

/// "reduced".
constexpr const char* name(StepEvent event) noexcept {
  switch (event) {
    case StepEvent::begun: return "begun";
    case StepEvent::ready: return "ready";
    case StepEvent::launched: return "launched";
    case StepEvent::started: return "started";
    case StepEvent::reduced: return "reduced";
    case StepEvent::waiting: return "waiting";
    case StepEvent::finished: return "finished";
  }
  return "unknown event";
}

/// One event of one step, on one rank.
/// @ingroup times
struct StepRecord {
  using Clock = std::chrono::steady_clock;  ///< the same for all processes of a host

  std::uint64_t step = 0;   ///< the step's number, from 1
  std::uint32_t index = 0;  ///< index of the parameter for `ready`, else of the bucket; 0 for events of the whole step
  StepEvent event = StepEvent::begun;
  Clock::time_point time{};

  friend bool operator==(const StepRecord&, const StepRecord&) = default;
};

/// The latest records overwrite the oldest. Allocates only at construction. Threads: `note` and `records` from any
/// thread, concurrently; `records` omits records that are being written.
class StepRecorder {
 public:
  /// @param capacity number of records; rounded up to a power of two
  explicit StepRecorder(std::size_t capacity) : slots_(std::bit_ceil(capacity < 2 ? std::size_t{2} : capacity)) {}

  void note(std::uint64_t step, StepEvent event, std::size_t index) noexcept {
    note(step, event, index, StepRecord::Clock::now());
  }

  void note(std::uint64_t step, StepEvent event, std::size_t index, StepRecord::Clock::time_point time) noexcept {
    const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
    RecordSlot& slot = slots_[number & (slots_.size() - 1)];
    const std::uint64_t before = slot.number.exchange(busy, std::memory_order_acquire);
    if (before == busy) {
      return;  // another thread has written this slot for a whole turn of the ring: drop the record
    }
    // A reader of a half-written record sees different numbers before and after reading it.
    slot.step.store(step, std::memory_order_release);
    slot.what.store(static_cast<std::uint64_t>(index) << 8 | static_cast<std::uint64_t>(event),
                    std::memory_order_release);
    slot.time.store(time.time_since_epoch().count(), std::memory_order_release);
    slot.number.store(number + 1, std::memory_order_release);
  }

  /// The records in the ring of steps from `first_step` on, in the order in which they were written. Allocates.
  std::vector<StepRecord> records(std::uint64_t first_step = 0) const;

 private:
  static constexpr std::uint64_t busy = ~std::uint64_t{0};

  struct RecordSlot {
    std::atomic<std::uint64_t> number{0};  ///< number of the record in this slot, from 1; 0 for none
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

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::vector<StepRecord> StepRecorder::records(std::uint64_t first_step) const {
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

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::StepEvent;
using ddp::StepRecord;
}  // namespace DTRAIN_NAMESPACE
