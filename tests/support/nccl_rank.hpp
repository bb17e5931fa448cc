#pragma once
/// @file
/// A rank with a device, a channel over NCCL and a stream, for ranks that are threads.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/nccl.hpp"
#include "support/channel_context.hpp"
#include "support/cuda_memory.hpp"
#include "support/skip.hpp"
#include "support/thread_ranks.hpp"
#if DTRAIN_EMULATED_CUDA
#include "emulation/emulation.hpp"
#endif

namespace support {

/// backend::Nccl asks for NCCL's launch order when a rank begins; see has_asked_for_queues.
inline const bool has_asked_for_order = ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0) == 0;

/// Whether so many ranks can have a device each; the emulation makes them.
inline bool enough_devices(int ranks) {
#if DTRAIN_EMULATED_CUDA
  emulation::set_device_count(ranks);
#endif
  int devices = 0;
  return dtrain::stream::cuda::quiet(cudaGetDeviceCount(&devices)) && devices >= ranks;
}

/// Those of 1, 2, 3, 4 and 8 that have a device for each rank.
inline std::vector<int> nccl_rank_counts() {
  std::vector<int> counts;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    if (enough_devices(ranks)) {
      counts.push_back(ranks);
    } else {
      dtrain_test::skip("there is no device for each of " + std::to_string(ranks) + " ranks");
    }
  }
  return counts;
}

/// How long an opening may take: real devices make a context each, one after the other, and NCCL sets up NVLink.
#if DTRAIN_EMULATED_CUDA
inline constexpr std::chrono::seconds opening_patience{10};
#else
inline constexpr std::chrono::seconds opening_patience{60};
#endif

/// The stream outlives the communicator, as it does in a ProcessGroup.
struct NcclRank {
  using Communicator = dtrain::backend::Nccl::Communicator;

  /// Says so where it cannot.
  static bool can_run(int ranks) {
    const bool can = enough_devices(ranks);
    if (!can) dtrain_test::skip("there is no device for each of " + std::to_string(ranks) + " ranks");
    return can;
  }

  NcclRank(const std::shared_ptr<FakeJob>& job, int rank, int size, const std::string& name = "group",
           std::chrono::nanoseconds timeout = opening_patience, std::chrono::nanoseconds opening = opening_patience)
      : device(taken(rank)),
        latch(job->latch(rank)),
        communicator(dtrain::backend::Nccl::open_blocking(channel_context(job, rank, size, name, timeout),
                                                          dtrain::Deadline::after(opening))),
        job_(job),
        channel_(name) {}

  NcclRank(std::shared_ptr<dtrain::FailureLatch> of, Communicator channel)
      : device(dtrain::stream::cuda::current_device()), latch(std::move(of)), communicator(std::move(channel)) {}

  /// Of this rank's device.
  dtrain::BufferView view(const DeviceBuffer& memory, std::size_t count, dtrain::DType dtype) const {
    return {memory.data(), count, dtype, {dtrain::DeviceKind::cuda, device}};
  }

  /// Memory of this rank's device with values, and what is there now. Blocking.
  struct Memory {
    dtrain::BufferView view() const { return rank.view(buffer, buffer.bytes() / size_bytes(dtype), dtype); }
    const NcclRank& rank;
    DeviceBuffer buffer;
    dtrain::DType dtype;
  };
  template <class T>
  Memory put(const std::vector<T>& values, dtrain::DType dtype = dtrain::dtype_of<T>::value) const {
    return {*this, on_device(values), dtype};
  }
  template <class T>
  static std::vector<T> get(const Memory& memory) {
    return on_host<T>(memory.buffer.data(), memory.buffer.bytes() / sizeof(T));
  }

  /// Blocking: until the stream has run what is enqueued. @returns whether the communicator still serves
  bool wait() { return completes(stream.ref(), std::chrono::seconds(30)) && !communicator.failure(); }

  /// Collective, blocking: a small all_reduce and a broadcast, which connect the ranks. Later ones return when they are
  /// enqueued, whether other ranks call them or not.
  void connect() {
    const Memory value = put<float>({1});
    communicator.enqueue(dtrain::backend::AllReduce{value.view(), value.view(), dtrain::ReduceOp::sum}, stream.ref());
    communicator.enqueue(dtrain::backend::Broadcast{value.view(), 0}, stream.ref());
    if (!wait()) throw dtrain::Error(dtrain::Errc::timeout, "a test's ranks did not connect");
  }

  /// Once all `ranks` are late in operations that differ, each finds what the next one is in, and a rank that is in the
  /// same as the next one waits for the others' word: however far apart their threads come, which NCCL's ranks wait for
  /// by the clock. Every rank calls it before its operation.
  void compares_when_all_are_late(int ranks) {
    const std::weak_ptr<FakeJob> weak = job_;
    job_->after_each_set([weak, ranks, prefix = channel_ + "/timeout/"](const std::string& key) {
      const std::shared_ptr<FakeJob> job = weak.lock();
      if (!job || !key.starts_with(prefix)) return;
      const int rank = std::stoi(key.substr(prefix.size()));
      const auto call_of = [&](int of) {
        const FakeStore store(job, of);
        const std::string said =
            store.try_get(prefix + std::to_string(of % ranks), dtrain::Deadline::after(std::chrono::seconds(1)))
                .wait()
                .value_or("");
        return said.substr(std::min(said.find(" called "), said.size()));
      };
      const auto has_failed = [&] { return job->latch(rank)->failed(); };
      const auto all_are_late = [&] {
        for (int of = 0; of < ranks; ++of)
          if (call_of(of).empty()) return false;
        return true;
      };
      holds_soon([&] { return has_failed() || all_are_late(); });
      if (call_of(rank) == call_of(rank + 1)) holds_soon(has_failed);
    });
  }

  const int device;
  std::shared_ptr<dtrain::FailureLatch> latch;
  dtrain::backend::Nccl::StreamOwner stream;
  Communicator communicator;

 private:
  static int taken(int rank) {
    check(cudaSetDevice(rank), "cudaSetDevice");
    return rank;
  }

  std::shared_ptr<FakeJob> job_;
  std::string channel_;
};

}  // namespace support
