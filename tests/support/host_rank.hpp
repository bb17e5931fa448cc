#pragma once
/// @file
/// A rank, as a thread of the test or a process, with a channel of any backend that reduces host memory, and a stream.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/backend/operations.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/stream/host/stream_ref.hpp"
#include "support/channel_context.hpp"

namespace support {

/// The stream outlives the communicator, as it does in a ProcessGroup.
template <class Backend>
struct HostRank {
  using Communicator = typename Backend::Communicator;

  /// @param options as of channel_context
  template <class Job, class... Options>
  HostRank(const std::shared_ptr<Job>& job, int rank, int size, const Options&... options)
      : HostRank(job->latch(rank), Backend::open_blocking(channel_context(job, rank, size, options...),
                                                          dtrain::Deadline::after(std::chrono::seconds(60)))) {}

  HostRank(std::shared_ptr<dtrain::FailureLatch> of, Communicator channel)
      : latch(std::move(of)), communicator(std::move(channel)) {}

  /// Blocking: runs what is enqueued. @returns whether the communicator still serves.
  bool wait() {
    dtrain::stream::host::Event event;
    stream.ref().record(event);
    const auto result = event.block_until_complete(dtrain::Deadline::after(std::chrono::seconds(60)));
    return result == dtrain::stream::WaitResult::complete && !communicator.failure();
  }

  bool all_reduce(const dtrain::ConstBufferView& input, const dtrain::BufferView& output, dtrain::ReduceOp op) {
    communicator.enqueue(dtrain::backend::AllReduce{input, output, op}, stream.ref());
    return wait();
  }

  /// Values that collectives take, and what is there when they have run: as a rank with a device has them.
  template <class T>
  struct Memory {
    dtrain::BufferView view() {
      return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T) / size_bytes(dtype), dtype, {}};
    }
    std::vector<T> values;
    dtrain::DType dtype;
  };
  template <class T>
  static Memory<T> put(std::vector<T> values, dtrain::DType dtype = dtrain::dtype_of<T>::value) {
    return {std::move(values), dtype};
  }
  template <class T>
  static const std::vector<T>& get(const Memory<T>& memory) {
    return memory.values;
  }

  std::shared_ptr<dtrain::FailureLatch> latch;
  typename Backend::StreamOwner stream;
  Communicator communicator;
};

/// Runs `body(HostRank<Backend>&, rank)` on a thread for each rank, on nodes as `node_of` says.
template <class Backend>
void run_topology_ranks(int ranks, const std::vector<int>& node_of,
                        const std::function<void(HostRank<Backend>&, int)>& body,
                        dtrain::Accumulate accumulate = dtrain::Accumulate::element) {
  const auto job = std::make_shared<FakeJob>(ranks);
  run_thread_ranks(ranks, [&](RankThread& thread) {
    HostRank<Backend> self(job, thread.rank(), ranks, "group", std::chrono::seconds(10), node_of, accumulate);
    thread.doing("running the body");
    body(self, thread.rank());
  });
}

}  // namespace support
