#pragma once
/// @file
/// A communicator without peers that counts what it is given, with a stream that runs work at once.

#include <doctest/doctest.h>

#include <cstddef>
#include <optional>

#include "dtrain/backend/communicator.hpp"
#include "support/fake_communicator.hpp"

namespace support {

/// Elements that a rank gives to collectives: of a bucket all of it, whatever part of the rank's own is named.
struct Traffic {
  std::size_t reduce_scattered = 0;
  std::size_t gathered = 0;
  std::size_t all_reduced = 0;
  std::size_t norms = 0;       ///< f64, beside the gradients
  std::size_t broadcasts = 0;  ///< calls
  std::size_t bytes = 0;       ///< of them all
};

/// Runs work when it is enqueued.
class ImmediateStream {
 public:
  struct Event {
    bool is_complete() const noexcept { return true; }
    dtrain::stream::WaitResult block_until_complete(dtrain::Deadline) noexcept {
      return dtrain::stream::WaitResult::complete;
    }
  };
  dtrain::Device device() const noexcept { return {}; }
  void record(Event&) const noexcept {}
  void wait(const Event&) const noexcept {}
  template <class Work>
  void enqueue(Work work) const {
    work();
  }
};

/// One rank of many, whose collectives count and leave memory as it is.
class CountingCommunicator {
 public:
  using Stream = ImmediateStream;
  using Allocation = FakeCommunicator::Allocation;

  CountingCommunicator(Traffic& traffic, int size) : traffic_(&traffic), size_(size) {}
  int rank() const noexcept { return size_ - 1; }
  int size() const noexcept { return size_; }

  void enqueue(const dtrain::backend::ReduceScatter& call, Stream) {
    CHECK(call.input.count == call.output.count * static_cast<std::size_t>(size_));
    traffic_->reduce_scattered += call.input.count;
    traffic_->bytes += call.input.bytes();
  }
  void enqueue(const dtrain::backend::AllGather& call, Stream) {
    CHECK(call.output.count == call.input.count * static_cast<std::size_t>(size_));
    traffic_->gathered += call.output.count;
    traffic_->bytes += call.output.bytes();
  }
  void enqueue(const dtrain::backend::AllReduce& call, Stream) {
    const dtrain::BufferView& output = call.output;
    (output.dtype == dtrain::DType::f64 ? traffic_->norms : traffic_->all_reduced) += output.count;
    traffic_->bytes += output.bytes();
  }
  void enqueue(const dtrain::backend::Broadcast&, Stream) { ++traffic_->broadcasts; }
  void enqueue(const dtrain::backend::Barrier&, Stream) {}
  Allocation allocate_blocking(std::size_t bytes, dtrain::Deadline) { return Allocation(bytes); }
  void abort(const dtrain::Cause&) noexcept {}
  std::optional<dtrain::Cause> failure() const { return {}; }

 private:
  Traffic* traffic_;
  int size_;
};

static_assert(dtrain::backend::CanReduceScatter<CountingCommunicator>);
static_assert(dtrain::backend::CanAllGather<CountingCommunicator>);

}  // namespace support
