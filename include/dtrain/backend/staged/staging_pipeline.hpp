#pragma once
/// @file
/// StagingPipeline of a staged::Communicator: chunks of device memory copied to the host, reduced there and copied
/// back, three at once.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/staged/chunk_copies.hpp"
#include "dtrain/backend/staged/host_worker.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// Copies chunks to the host on the program's stream, and results back on a copy stream, for which the program's stream
/// waits. Lifetime: until block_until_drained(). Threads: one enqueues; chunks() from any.
template <Communicator C>
class DeviceCopies {
 public:
  /// Collective, blocking: allocates `room` bytes of the inner communicator's memory for each slot.
  DeviceCopies(C& inner, std::size_t room, Deadline deadline)
      : room_(room),
        slot_memory_(inner.allocate_blocking(slots * room, deadline)),
        pinned_(slot_memory_.data(), slots * room),
        upload_(stream::cuda::Priority::high) {}

  ChunkPool& chunks() noexcept { return chunks_; }
  stream::cuda::StreamRef upload() const noexcept { return upload_.ref(); }

  /// Host memory of the next chunk. `stream` waits until the previous chunk has left it.
  struct StagingSlot {
    std::byte* memory;
    stream::cuda::Event* copied_back;
  };
  StagingSlot acquire_slot(stream::cuda::StreamRef stream) {
    const StagingSlot slot{slot_memory_.data() + next_slot_ * room_, &copied_back_[next_slot_]};
    next_slot_ = (next_slot_ + 1) % slots;
    stream.wait(*slot.copied_back);
    return slot;
  }
  void release(const StagingSlot& slot) { upload_.ref().record(*slot.copied_back); }

  /// Enqueues both copies of a chunk, and the chunk's events between them.
  void enqueue_copies(StagedChunk& chunk, ChunkCopies copies, stream::cuda::StreamRef stream) {
    chunk.host = std::move(copies.host);
    stream.record(chunk.started);
    enqueue_copy(copies.to_host, cudaMemcpyDeviceToHost, stream);
    for (const StridedCopy& copy : copies.blocks_to_host) {
      enqueue_copy(copy, cudaMemcpyDeviceToHost, stream);
    }
    stream.record(chunk.copied_to_host);
    upload_.ref().wait(chunk.copied_to_host);  // the host, after a failure, signals before this copy has ended
    upload_.ref().wait_unwatched(chunk.result_ready, Deadline::after(longer_than_any_queue));
    enqueue_copy(copies.to_device, cudaMemcpyHostToDevice, upload_.ref());
    for (const StridedCopy& copy : copies.blocks_to_device) {
      enqueue_copy(copy, cudaMemcpyHostToDevice, upload_.ref());
    }
  }

  /// Enqueued: later work of `stream` starts when all results are on the device.
  void join_stream(stream::cuda::StreamRef stream) {
    upload_.ref().record(all_copied_back_);
    stream.wait(all_copied_back_);
    stream.record(last_);
  }

  /// Blocking: until the device has passed the last join_stream, a few seconds at most.
  bool block_until_drained() const noexcept {
    try {
      return last_.block_until_complete(Deadline::after(drain_timeout)) == stream::WaitResult::complete;
    } catch (...) {
      return true;  // a failed device uses no memory any more
    }
  }

 private:
  /// The host signals every chunk by its own deadlines, which ends this wait.
  static constexpr std::chrono::hours longer_than_any_queue{24};
  static constexpr std::chrono::seconds drain_timeout{5};

  // Members are destroyed in the reverse order.
  std::size_t room_;
  typename C::Allocation slot_memory_;
  stream::cuda::HostRegistration pinned_;
  ChunkPool chunks_;
  std::array<stream::cuda::Event, slots> copied_back_;  ///< the slot's last chunk is on the device again
  stream::cuda::Event all_copied_back_;                 ///< all chunks are
  stream::cuda::Event last_;
  stream::cuda::Stream upload_;
  std::size_t next_slot_ = 0;
};

/// Each chunk has three stages, so three chunks move at once and the program's thread does not block. At the end of an
/// operation the program's stream waits for the copy stream. Stages:
/// 1. The program's stream copies the chunk to the host.
/// 2. The worker's thread waits for that copy and runs the inner operation.
/// 3. The copy stream waits for the thread and copies the result to the device.
///
/// Not movable. Threads: one submits; abort() and failure() from any. Destruction ends work that has not run, and
/// blocks for the copies in flight. Lifetime: the program's stream outlives its work.
template <Communicator C>
class StagingPipeline {
 public:
  /// Collective, blocking: allocates host memory. The device is the thread's current one.
  StagingPipeline(const ChannelContext& context, C inner, Deadline deadline)
      : context_(context),
        device_(stream::cuda::current_device()),
        inner_(std::move(inner)),
        room_(std::max(slot_bytes, static_cast<std::size_t>(inner_->size()) * largest_element)),
        device_copies_(new DeviceCopies<C>(*inner_, room_, deadline)),
        host_worker_(std::in_place, context_, *inner_, device_copies_->chunks(), device_) {}
  StagingPipeline(const StagingPipeline&) = delete;
  StagingPipeline& operator=(const StagingPipeline&) = delete;

  ~StagingPipeline() {
    host_worker_.reset();
    const bool drained = device_copies_->block_until_drained();
    // This rank leaves the channel before its pinned memory is freed: cudaFreeHost() waits for all work of this process
    // on the device, and that of another rank in the process may be waiting for this one to come or to leave.
    inner_.reset();
    if (!drained) {
      static_cast<void>(device_copies_.release());  // leaked, because the device still uses it
    }
  }

  /// Bytes of host memory per chunk in a slot.
  std::size_t room() const noexcept { return room_; }

  /// Enqueues the copies of each chunk, which `describe(index, slot)` returns as ChunkCopies. `slot` is null if the
  /// operation does not use slots. After a failure nothing is enqueued.
  /// @throws Error (unsupported: the stream is captured; cuda: the channel is then out of service)
  template <class Start, class Describe>
  void submit(const StagedOperation<Start>& operation, std::size_t chunks, bool through_slots, Describe describe,
              stream::cuda::StreamRef stream) {
    const stream::cuda::DeviceGuard guard(device_);
    refuse_capture(operation.name, stream);
    if (failure()) {
      return;
    }
    Batch<Start> batch(*this, operation);
    try {
      for (std::size_t index = 0; index < chunks; ++index) {
        StagedChunk& chunk = batch.add();
        if (through_slots) {
          const typename DeviceCopies<C>::StagingSlot slot = device_copies_->acquire_slot(stream);
          device_copies_->enqueue_copies(chunk, describe(index, slot.memory), stream);
          device_copies_->release(slot);
        } else {
          device_copies_->enqueue_copies(chunk, describe(index, nullptr), stream);
        }
        batch.enqueue_if_full();
      }
      batch.enqueue();
      device_copies_->join_stream(stream);
    } catch (const std::exception& error) {
      host_worker_->fail(operation.name, CauseKind::exception, error.what());
      batch.release_chunks();
      join_stream_if_possible(stream);
      throw;
    }
  }

  /// Blocking: until everything submitted has run on the host. @returns false at the deadline
  bool drain(Deadline deadline) { return host_worker_->drain(deadline); }

  /// A number that grows while chunks complete. Threads: any.
  std::uint64_t progress() const noexcept { return host_worker_->progress(); }

  /// @throws Error (invalid_argument, unsupported) unless buffers and stream are on this channel's device
  DTRAIN_NOT_INLINED void check_devices(const Devices& buffers, stream::cuda::StreamRef stream) const {
    const Device own{DeviceKind::cuda, device_};
    if (stream.device() != own) {
      throw_error(Errc::invalid_argument, "this channel takes streams of {}, not one of {}",
                  {to_string(own), to_string(stream.device())});
    }
    for (const Device device : buffers) {
      if (device != own) {
        throw_error(Errc::unsupported,
                    "this channel takes memory of {}, not of {}; backend::Staged is for device memory, the backend in "
                    "it for the host's",
                    {to_string(own), to_string(device)});
      }
    }
  }

  C& inner() noexcept { return *inner_; }
  const C& inner() const noexcept { return *inner_; }
  const ChannelContext& context() const noexcept { return context_; }
  int device() const noexcept { return device_; }
  stream::cuda::StreamRef upload() const noexcept { return device_copies_->upload(); }

  void abort(const Cause& cause) noexcept { inner_->abort(cause); }
  std::optional<Cause> failure() const { return inner_->failure(); }

 private:
  static constexpr std::size_t largest_element = 16;

  /// Chunks passed to the thread together. The first chunk is passed alone, so that the thread begins at once.
  template <class Start>
  class Batch {
   public:
    Batch(StagingPipeline& pipeline, const StagedOperation<Start>& operation) noexcept
        : pipeline_(pipeline), operation_(operation) {}

    StagedChunk& add() {
      if (pipeline_.device_copies_->chunks().is_empty()) {
        enqueue();  // add() would otherwise wait for the device, which waits for these chunks
      }
      StagedChunk& chunk = pipeline_.device_copies_->chunks().take();
      (first_ == nullptr ? first_ : last_->next) = &chunk;
      last_ = &chunk;
      ++count_;
      return chunk;
    }

    void enqueue_if_full() {
      if (count_ >= limit_) {
        enqueue();
        limit_ = chunks_together;
      }
    }

    void enqueue() {
      if (first_ != nullptr) {
        pipeline_.host_worker_->enqueue(operation_, first_, count_);
        first_ = nullptr;
        count_ = 0;
      }
    }

    void release_chunks() noexcept { pipeline_.device_copies_->chunks().release_all(std::exchange(first_, nullptr)); }

   private:
    static constexpr std::size_t chunks_together = 8;

    StagingPipeline& pipeline_;
    const StagedOperation<Start>& operation_;
    StagedChunk* first_ = nullptr;
    StagedChunk* last_ = nullptr;
    std::size_t count_ = 0;
    std::size_t limit_ = 1;
  };

  static void refuse_capture(const char* operation, stream::cuda::StreamRef stream) {
    if (stream.is_capturing()) {
      throw_error(Errc::unsupported,
                  "{} through host memory was enqueued on a stream that is being captured, but a graph cannot hold "
                  "what the host does; use backend::Nccl, or do not capture",
                  {operation});
    }
  }

  /// After a failure: the destructor then waits for the copies that were enqueued.
  void join_stream_if_possible(stream::cuda::StreamRef stream) noexcept {
    try {
      device_copies_->join_stream(stream);
    } catch (...) {
      // The device itself has failed.
    }
  }

  const ChannelContext context_;
  const int device_;
  std::optional<C> inner_;  ///< empty only during destruction
  const std::size_t room_;
  std::unique_ptr<DeviceCopies<C>> device_copies_;
  std::optional<HostWorker<C>> host_worker_;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
