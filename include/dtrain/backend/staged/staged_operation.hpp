#pragma once
/// @file
/// StagedOperation: an operation of the inner backend, run on one chunk after the other; StagedChunk: a chunk in
/// flight, with the events of its stages.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/external_event.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// The device signals that the chunk is on the host. A thread runs the inner operation on it, and signals the device
/// that the result can be copied.
struct StagedChunk {
  explicit StagedChunk(std::byte* pinned_word) : result_ready(pinned_word) {}

  stream::cuda::Event started;               ///< the program's stream has reached the chunk
  stream::cuda::Event copied_to_host;        ///< the chunk is in host memory
  stream::cuda::ExternalEvent result_ready;  ///< the result is in host memory
  std::byte* input = nullptr;                ///< operands of the inner operation
  std::byte* output = nullptr;
  std::size_t input_count = 0;
  std::size_t output_count = 0;
  std::unique_ptr<const BlockExchange> blocks;  ///< of the operands, if the operation has blocks
  StagedChunk* next = nullptr;                  ///< of the same operation
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
    chunk.blocks.reset();
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

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

enum class StagedKind : std::uint8_t {
  all_reduce,
  broadcast,
  barrier,
  reduce_scatter,
  all_gather,
  exchange,
  exchange_blocks,
  reduce_blocks
};

constexpr std::string_view name(StagedKind kind) noexcept {
  switch (kind) {
    case StagedKind::all_reduce: return "an all_reduce";
    case StagedKind::broadcast: return "a broadcast";
    case StagedKind::barrier: return "a barrier";
    case StagedKind::reduce_scatter: return "a reduce_scatter";
    case StagedKind::all_gather: return "an all_gather";
    case StagedKind::exchange: return "a send or recv";
    case StagedKind::exchange_blocks: return "an exchange of blocks";
    case StagedKind::reduce_blocks: return "a reduction of blocks";
  }
  return "an operation";
}

/// Properties shared by all chunks of an operation.
struct StagedOperation {
  StagedKind kind = StagedKind::barrier;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  int to = -1;  ///< peers of an exchange; -1: nothing is sent, or received
  int from = -1;
};

namespace detail {

template <class C>
void start_exchange(C& inner, const StagedOperation& operation, const ConstBufferView& input, const BufferView& output,
                    const StagedChunk& chunk, stream::host::StreamRef stream) {
  // The longer of two messages continues alone. A message without elements is sent, too.
  const bool sends = operation.to >= 0 && chunk.input != nullptr;
  const bool receives = operation.from >= 0 && chunk.output != nullptr;
  if (sends && receives) {
    inner.send_recv(input, operation.to, output, operation.from, stream);
  } else if (sends) {
    inner.send(input, operation.to, stream);
  } else if (receives) {
    inner.recv(output, operation.from, stream);
  }
}

/// Messages with the pieces of a chunk. In step d, rank r sends to r + d and receives from r - d: so no rank waits for
/// another in a circle, though some pairs have no piece.
template <class C>
void start_messages(C& inner, const BlockExchange& blocks, const ConstBufferView& input, const BufferView& output,
                    stream::host::StreamRef stream) {
  const std::size_t element = size_bytes(input.dtype);
  for (int distance = 0; distance < inner.size(); ++distance) {
    const int to = (inner.rank() + distance) % inner.size();
    const int from = (inner.rank() - distance + inner.size()) % inner.size();
    const BlockRange& sent = blocks.sent[static_cast<std::size_t>(to)];
    const BlockRange& received = blocks.received[static_cast<std::size_t>(from)];
    const ConstBufferView message{input.data + sent.offset * element, sent.count, input.dtype};
    const BufferView memory{output.data + received.offset * element, received.count, output.dtype, {}};
    if (sent.count != 0 && received.count != 0) {
      inner.send_recv(message, to, memory, from, stream);
    } else if (sent.count != 0) {
      inner.send(message, to, stream);
    } else if (received.count != 0) {
      inner.recv(memory, from, stream);
    }
  }
}

}  // namespace detail

/// Inner backends of which device memory's blocks can be exchanged.
template <class C>
concept CanStageBlocks = CanExchangeBlocks<C> && CanSendRecv<C>;

/// Enqueues the operation on a chunk's host memory. @throws the inner communicator's exceptions at the call
template <class C>
void start(C& inner, const StagedOperation& operation, const StagedChunk& chunk, stream::host::StreamRef stream) {
  const ConstBufferView input{chunk.input, chunk.input_count, operation.dtype};
  const BufferView output{chunk.output, chunk.output_count, operation.dtype, {}};
  switch (operation.kind) {
    case StagedKind::all_reduce: return inner.all_reduce(input, output, operation.op, stream);
    case StagedKind::broadcast: return inner.broadcast(output, operation.root, stream);
    case StagedKind::barrier: return inner.barrier(stream);
    case StagedKind::reduce_scatter:
      if constexpr (CanReduceScatter<C>) {
        inner.reduce_scatter(input, output, operation.op, stream);
      }
      return;
    case StagedKind::all_gather:
      if constexpr (CanAllGather<C>) {
        inner.all_gather(input, output, stream);
      }
      return;
    case StagedKind::exchange:
      if constexpr (CanSendRecv<C>) {
        detail::start_exchange(inner, operation, input, output, chunk, stream);
      }
      return;
    case StagedKind::exchange_blocks:
      if constexpr (CanStageBlocks<C>) {
        if (chunk.blocks->kind == OperationKind::send_recv) {
          detail::start_messages(inner, *chunk.blocks, input, output, stream);
        } else {
          inner.exchange_blocks(*chunk.blocks, input, output, stream);
        }
      }
      return;
    case StagedKind::reduce_blocks:
      if constexpr (CanReduceBlocks<C>) {
        inner.reduce_blocks(*chunk.blocks, input, output, operation.op, stream);
      }
      return;
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
