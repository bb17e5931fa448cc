#pragma once
/// @file
/// DeviceCopies: the slots of host memory, the copy stream, and the events between them.

#include <array>
#include <chrono>
#include <cstddef>
#include <utility>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/staged/chunk_copies.hpp"
#include "dtrain/backend/staged/chunk_plan.hpp"
#include "dtrain/backend/staged/staged_chunk.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/host_registration.hpp"
#include "dtrain/stream/cuda/stream.hpp"

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
    chunk.input = copies.input;
    chunk.output = copies.output;
    chunk.input_count = copies.input_count;
    chunk.output_count = copies.output_count;
    chunk.blocks = std::move(copies.blocks);
    stream.record(chunk.started);
    copy_to_host(copies.to_host, stream);
    for (const StridedCopy& copy : copies.blocks_to_host) {
      copy_to_host(copy, stream);
    }
    stream.record(chunk.copied_to_host);
    upload_.ref().wait(chunk.copied_to_host);  // after a failure the host signals before this copy has ended
    upload_.ref().wait_unwatched(chunk.result_ready, Deadline::after(longer_than_any_queue));
    copy_to_device(copies.to_device, upload_.ref());
    for (const StridedCopy& copy : copies.blocks_to_device) {
      copy_to_device(copy, upload_.ref());
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
      return true;  // a device that has failed uses nothing any more
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

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
