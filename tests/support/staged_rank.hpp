#pragma once
/// @file
/// A rank with a channel of device memory through host memory, for ranks that are threads.

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/backend/staged.hpp"
#include "support/channel_context.hpp"
#include "support/cuda_memory.hpp"
#include "support/fake_store.hpp"
#include "support/thread_ranks.hpp"

namespace support {

/// The stream outlives the communicator, as it does in a ProcessGroup.
template <class Inner = dtrain::backend::SharedMemory>
struct StagedRank {
  using Backend = dtrain::backend::Staged<Inner>;

  StagedRank(const std::shared_ptr<FakeJob>& job, int rank, int size, const std::string& name = "staged",
             std::chrono::nanoseconds timeout = std::chrono::seconds(20))
      : latch(job->latch(rank)),
        communicator(Backend::open_blocking(channel_context(job, rank, size, name, timeout),
                                            dtrain::Deadline::after(std::chrono::seconds(60)))) {}

  StreamRef ref() const { return stream.ref(); }

  /// Memory of the device, until forget(). Ranks that are threads neither allocate nor free some while others' work is
  /// under way: that would wait for the whole device, and these for this rank.
  dtrain::BufferView space(std::size_t count, dtrain::DType dtype = dtrain::DType::f32) {
    std::byte* const data = scratch.data() + used;
    used += (count * size_bytes(dtype) + 511) / 256 * 256;
    if (used > scratch.bytes()) throw dtrain::Error(dtrain::Errc::limit, "a test needs more device memory than it has");
    return view(data, count, dtype);
  }
  void forget() { used = 0; }

  /// The same with values. Blocking.
  struct Memory {
    operator dtrain::BufferView() const { return held; }
    dtrain::BufferView view() const { return held; }
    dtrain::BufferView held;
  };
  template <class T>
  Memory put(const std::vector<T>& values, dtrain::DType dtype = dtrain::dtype_of<T>::value) {
    const dtrain::BufferView made = space(values.size() * sizeof(T) / size_bytes(dtype), dtype);
    write(made.data, values);
    return {made};
  }

  /// Blocking: what is there when all work has ended.
  template <class T>
  static std::vector<T> get(const dtrain::BufferView& from) {
    return on_host<T>(from.data, from.bytes() / sizeof(T));
  }

  /// Blocking: until the stream has done all. @returns whether it has, and the communicator still serves
  bool wait() { return passes() && !communicator.failure(); }

  /// Blocking. @returns whether the stream has done all
  bool passes() { return completes(ref(), std::chrono::seconds(30)); }

  /// A view of memory of this rank's device.
  dtrain::BufferView view(std::byte* data, std::size_t count, dtrain::DType dtype = dtrain::DType::f32) const {
    return {data, count, dtype, ref().device()};
  }

  static constexpr std::size_t scratch_bytes = std::size_t{64} << 20;
  DeviceBuffer scratch{scratch_bytes};
  std::size_t used = 0;
  std::shared_ptr<dtrain::FailureLatch> latch;
  typename Backend::StreamOwner stream;
  typename Backend::Communicator communicator;
};

}  // namespace support
