#pragma once
/// @file
/// An event: the last record of it on a stream, which waits and queries look at.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "stream.hpp"

namespace emulation {

/// One record of an event: done when its stream has come to it. Records live as long as the process: counting who still
/// uses one would be an order between streams that a GPU does not give.
struct Record {
  std::atomic<std::uint32_t> done{0};
  std::atomic<std::int64_t> done_at_ns{0};
  Record* older = nullptr;

  bool is_done() const noexcept { return done.load(std::memory_order_acquire) != 0; }
  void complete() noexcept;
  /// Blocking: until done.
  void block() const noexcept;
};

Record* new_record();

/// What a captured record names: a record that each launch of the graph makes anew.
struct CapturedRecord {
  Capture* capture = nullptr;
  std::size_t index = 0;
};

class Event {
 public:
  Event(int device, unsigned int flags) : device_(device), flags_(flags) {}
  int device() const noexcept { return device_; }
  bool has_timing() const noexcept { return (flags_ & cudaEventDisableTiming) == 0; }

  /// Null before the first record.
  Record* latest() const noexcept { return latest_.load(std::memory_order_acquire); }
  void set_latest(Record* record) noexcept { latest_.store(record, std::memory_order_release); }

  CapturedRecord captured() const noexcept { return captured_; }
  void set_captured(CapturedRecord captured) noexcept { captured_ = captured; }

 private:
  const int device_;
  const unsigned int flags_;
  std::atomic<Record*> latest_{nullptr};
  CapturedRecord captured_;
};

inline Event* event_of(cudaEvent_t handle) noexcept {
  return reinterpret_cast<Event*>(handle);
}

}  // namespace emulation
