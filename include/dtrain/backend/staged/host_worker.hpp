#pragma once
/// @file
/// HostWorker of a StagingPipeline: the thread that runs the inner backend's operations on chunks in host memory;
/// signals every chunk, also after a failure.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/staged/chunk_copies.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/host/communication_stream.hpp"
#include "dtrain/stream/host/queue.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// Operands of the inner backend's operation on a chunk.
struct ChunkOperands {
  ConstBufferView input;
  BufferView output;
  const BlockExchange* blocks;  ///< null unless the operation reduces blocks
};

/// The device signals that the chunk is on the host. A thread runs the inner operation on it, and signals the device
/// that the result can be copied.
struct StagedChunk {
  explicit StagedChunk(std::byte* pinned_word) : result_ready(pinned_word) {}

  stream::cuda::Event started;               ///< the program's stream has reached the chunk
  stream::cuda::Event copied_to_host;        ///< the chunk is in host memory
  stream::cuda::ExternalEvent result_ready;  ///< the result is in host memory
  HostOperands host;
  StagedChunk* next = nullptr;  ///< the next chunk of the same operation

  ChunkOperands operands(DType dtype) const noexcept {
    return {{host.input, host.input_count, dtype}, {host.output, host.output_count, dtype, {}}, host.blocks.get()};
  }
};

/// Owns chunks and lends them; grows if all are lent. Threads: any.
class ChunkPool {
 public:
  /// @throws Error (cuda) if there is no more pinned memory
  ChunkPool() { grow(); }

  /// Whether the next take() allocates, which may wait for the whole device.
  bool is_empty() {
    const std::lock_guard lock(mutex_);
    return free_.empty();
  }

  /// @throws Error (cuda) if there is no more pinned memory
  StagedChunk& take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      grow();
    }
    StagedChunk& chunk = *free_.back();
    free_.pop_back();
    chunk.result_ready.reset();
    chunk.next = nullptr;
    return chunk;
  }

  /// Signals the device, and takes the chunk back. The device may reach its wait for the signal later.
  void release(StagedChunk& chunk) noexcept {
    chunk.host.blocks.reset();
    chunk.result_ready.signal();
    const std::lock_guard lock(mutex_);
    free_.push_back(&chunk);  // there is room for all
  }

  /// release() for each chunk of a chain.
  void release_all(StagedChunk* first) noexcept {
    for (StagedChunk* next = nullptr; first != nullptr; first = next) {
      next = first->next;
      release(*first);
    }
  }

 private:
  static constexpr std::size_t chunks_together = 256;
  static constexpr std::size_t word_distance = 64;  // a cache line each

  void grow() {
    words_.emplace_back(chunks_together * word_distance);
    free_.reserve(chunks_.size() + chunks_together);
    for (std::size_t i = 0; i < chunks_together; ++i) {
      chunks_.emplace_back(words_.back().data() + i * word_distance);
      free_.push_back(&chunks_.back());
    }
  }

  std::mutex mutex_;
  std::deque<stream::cuda::PinnedBuffer> words_;
  std::deque<StagedChunk> chunks_;
  std::vector<StagedChunk*> free_;
};

/// Properties shared by all chunks of an operation.
/// @tparam Start `start(inner, operands, stream)` enqueues the inner backend's operation on a chunk's host memory
template <class Start>
struct StagedOperation {
  const char* name;  ///< "an all_reduce"
  DType dtype;
  Start start;
};

/// Uses the inner communicator in a thread. Signals every chunk in the end, also after a failure: no stream is left
/// waiting. Not movable. Threads: one enqueues and drains; fail() and progress() from any.
template <Communicator C>
class HostWorker {
 public:
  /// Lifetime: `chunks` outlive it.
  HostWorker(const ChannelContext& context, C& inner, ChunkPool& chunks, int device)
      : context_(context), device_(device), inner_(inner), chunks_(chunks) {
    thread_.start_helper();
  }
  HostWorker(const HostWorker&) = delete;
  HostWorker& operator=(const HostWorker&) = delete;

  /// Ends work that has not run. Blocking: until the running operation has ended, which the abort makes it do.
  ~HostWorker() {
    if (completed_.load() != enqueued_) {
      inner_.abort({CauseKind::exception, context_.reporting_rank(), context_.members.host,
                    "its communicator was destroyed before all of its work had run"});
    }
    thread_.stop_helper();
  }

  /// Enqueues a chain of `count` chunks, which complete in turn. Blocking: while hundreds of chains are waiting.
  template <class Start>
  void enqueue(const StagedOperation<Start>& operation, StagedChunk* first, std::size_t count) {
    thread_.ref().enqueue(QueuedChunks<Start>{this, operation, first});
    enqueued_ += count;
  }

  /// Blocking: until everything enqueued has run. @returns false at the deadline
  bool drain(Deadline deadline) {
    stream::host::Event all;
    thread_.ref().record(all);
    return all.block_until_complete(deadline) == stream::WaitResult::complete;
  }

  /// How many chunks have been completed. Threads: any.
  std::uint64_t progress() const noexcept { return completed_.load(); }

  /// Ends the channel and reports to the job. @param operation "an all_reduce"
  void fail(const char* operation, CauseKind cause_kind, const char* text) noexcept {
    try {
      const Cause cause{cause_kind, context_.reporting_rank(), context_.members.host,
                        format_text("{} on channel '{}': {}", {operation, context_.name, text})};
      inner_.abort(cause);
      context_.failure->report(cause);
    } catch (...) {
      // Without memory for the message, the peers' timeouts end the job.
    }
  }

 private:
  static constexpr std::chrono::milliseconds failure_check_interval{5};

  template <class Start>
  struct QueuedChunks {
    HostWorker* worker;
    StagedOperation<Start> operation;
    StagedChunk* first;

    void operator()() noexcept { worker->process(operation, first); }
    void drop() noexcept { worker->chunks_.release_all(first); }
  };

  template <class Start>
  void process(const StagedOperation<Start>& operation, StagedChunk* chunk) noexcept {
    for (StagedChunk* next = nullptr; chunk != nullptr; chunk = next) {
      next = chunk->next;
      try {
        const stream::cuda::RelaxedCapture relaxed;
        take_device();
        if (!inner_.failure() && wait_until_on_host(operation.name, *chunk)) {
          run(operation, *chunk);
        }
      } catch (const std::exception& error) {
        fail(operation.name, CauseKind::exception, error.what());
      }
      if (chunk->result_ready.timed_out()) {
        fail(operation.name, CauseKind::timeout, "its stream's wait for the host timed out");
      }
      completed_.fetch_add(1);  // first: a thread that sees the result may destroy the communicator
      chunks_.release(*chunk);
    }
  }

  /// A new thread's current device is 0, and other CUDA calls would allocate memory on it.
  void take_device() const {
    if (stream::cuda::current_device() != device_) {
      stream::cuda::check(cudaSetDevice(device_), "cudaSetDevice");
    }
  }

  /// Blocking: until the chunk is in host memory. From when the program's stream has reached the chunk, the deadline is
  /// the channel's timeout; before that the peers' timeouts fail the channel. @returns false if the channel has failed
  bool wait_until_on_host(const char* operation, const StagedChunk& chunk) {
    std::optional<Deadline> deadline;
    while (chunk.copied_to_host.block_until_complete(Deadline::after(failure_check_interval)) !=
           stream::WaitResult::complete) {
      if (inner_.failure()) {
        return false;
      }
      if (!deadline && chunk.started.is_complete()) {
        deadline = Deadline::after(context_.timeout);
      }
      if (deadline && deadline->passed()) {
        fail(operation, CauseKind::timeout,
             "copying a chunk to the host took longer than the timeout; is the device still there?");
        return false;
      }
    }
    return true;
  }

  /// Blocking: the inner operation ends by its deadline.
  template <class Start>
  void run(const StagedOperation<Start>& operation, const StagedChunk& chunk) {
    operation.start(inner_, chunk.operands(operation.dtype), steps_.ref());
    while (steps_.block_until_complete(steps_.published(), Deadline::after(std::chrono::minutes(1))) !=
           stream::WaitResult::complete) {
    }
  }

  const ChannelContext& context_;
  const int device_;
  C& inner_;
  ChunkPool& chunks_;
  stream::host::Queue steps_;                 ///< the inner communicator's
  std::uint64_t enqueued_ = 0;                ///< chunks
  std::atomic<std::uint64_t> completed_{0};   ///< chunks
  stream::host::CommunicationStream thread_;  ///< destroyed first: drops and signals pending work
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
