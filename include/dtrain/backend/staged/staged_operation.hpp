#pragma once
/// @file
/// StagedOperation: an operation of the inner backend, run on one chunk after the other; StagedChunk: a chunk in
/// flight, with the events of its stages.

#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/staged/chunk_copies.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/external_event.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// Operands of the inner backend's operation on a chunk.
struct ChunkOperands {
  ConstBufferView input;
  BufferView output;
  const BlockExchange* blocks;  ///< null unless the operation has blocks
};

/// The device signals that the chunk is on the host. A thread runs the inner operation on it, and signals the device
/// that the result can be copied.
struct StagedChunk {
  explicit StagedChunk(std::byte* pinned_word) : result_ready(pinned_word) {}

  stream::cuda::Event started;               ///< the program's stream has reached the chunk
  stream::cuda::Event copied_to_host;        ///< the chunk is in host memory
  stream::cuda::ExternalEvent result_ready;  ///< the result is in host memory
  HostOperands host;
  StagedChunk* next = nullptr;  ///< of the same operation

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

  /// The same for a chain.
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

/// Messages with the pieces of a chunk. In step d, rank r sends to r + d and receives from r - d: so no rank waits for
/// another in a circle, though some pairs have no piece.
template <class C>
void start_messages(C& inner, const ChunkOperands& chunk, stream::host::StreamRef stream) {
  const std::size_t element = size_bytes(chunk.input.dtype);
  for (int distance = 0; distance < inner.size(); ++distance) {
    const int to = (inner.rank() + distance) % inner.size();
    const int from = (inner.rank() - distance + inner.size()) % inner.size();
    const BlockRange& sent = chunk.blocks->sent[static_cast<std::size_t>(to)];
    const BlockRange& received = chunk.blocks->received[static_cast<std::size_t>(from)];
    const ConstBufferView message{chunk.input.data + sent.offset * element, sent.count, chunk.input.dtype};
    const BufferView memory{chunk.output.data + received.offset * element, received.count, chunk.output.dtype, {}};
    if (sent.count != 0 && received.count != 0) {
      inner.enqueue(SendRecv{message, to, memory, from}, stream);
    } else if (sent.count != 0) {
      inner.enqueue(Send{message, to}, stream);
    } else if (received.count != 0) {
      inner.enqueue(Recv{memory, from}, stream);
    }
  }
}

/// Inner backends of which device memory's blocks can be exchanged.
template <class C>
concept CanStageBlocks = CanExchangeBlocks<C> && CanSendRecv<C>;

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
