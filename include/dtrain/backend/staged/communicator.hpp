#pragma once
/// @file
/// Communicator of device memory, staged through a communicator of host memory; Allocation: device memory, with the
/// host memory through which its operations pass.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "dtrain/backend/allocation_table.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/open_and_report.hpp"
#include "dtrain/backend/check_arguments.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/staged/block_chunks.hpp"
#include "dtrain/backend/staged/chunk_copies.hpp"
#include "dtrain/backend/staged/staged_operation.hpp"
#include "dtrain/backend/staged/staging_pipeline.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// Owns both. The host shadow is a pinned allocation of the inner backend, which reduces there without another copy.
/// Lifetime: outlives all work on it; may outlive the communicator.
template <class Inner>
class Allocation {
 public:
  Allocation() noexcept = default;
  Allocation(stream::cuda::DeviceBuffer device, Inner host_shadow)
      : memory_(std::make_shared<DeviceAndHostMemory>(std::move(device), std::move(host_shadow))) {}
  Allocation(Allocation&&) noexcept = default;
  Allocation& operator=(Allocation&&) noexcept = default;

  /// On the device, aligned to 256 bytes.
  std::byte* data() const noexcept { return memory_ ? memory_->device.data() : nullptr; }
  std::size_t bytes() const noexcept { return memory_ ? memory_->device.bytes() : 0; }

  std::byte* host_shadow() const noexcept { return memory_ ? memory_->host_shadow.data() : nullptr; }
  std::weak_ptr<const void> lifetime() const noexcept { return memory_; }

 private:
  /// Destroyed in the reverse order: freeing device memory waits for the work on it.
  struct DeviceAndHostMemory {
    DeviceAndHostMemory(stream::cuda::DeviceBuffer on_device, Inner on_host)
        : host_shadow(std::move(on_host)),
          pinned(host_shadow.data(), host_shadow.bytes()),
          device(std::move(on_device)) {}
    Inner host_shadow;
    stream::cuda::HostRegistration pinned;
    stream::cuda::DeviceBuffer device;
  };

  std::shared_ptr<DeviceAndHostMemory> memory_;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// Owns one rank's end of a channel, for memory of one device. Reductions have the inner backend's bits: chunks depend
/// on counts and types alone. Threads: one at a time, abort() and failure() from any. Destruction skips work that has
/// not run. No function blocks unless it says so, except while hundreds of chunks are in flight.
template <backend::Communicator Inner>
class Communicator {
 public:
  using Stream = stream::cuda::StreamRef;
  using Allocation = staged::Allocation<typename Inner::Allocation>;

  /// Collective, blocking: takes over a channel of host memory. The device is the thread's current one.
  /// @throws Error (cuda), and as the inner allocate_blocking
  Communicator(const ChannelContext& context, Inner inner, Deadline deadline)
      : pipeline_(make_process_owned<StagingPipeline<Inner>>(context, std::move(inner), deadline)) {}

  int rank() const noexcept { return inner().rank(); }
  int size() const noexcept { return inner().size(); }
  const rendezvous::Membership& members() const noexcept { return pipeline_->context().members; }

  /// See CanAllReduce. If a buffer lies in an allocation, the only copies are those between device and host.
  /// @throws Error (unsupported, invalid_argument, cuda) at the call, as do the others
  void all_reduce(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) {
    pipeline_->check_device(input, output, stream);
    check_all_reduce(input, output);
    std::byte* const host_shadow = host_shadow_of(output);
    const std::size_t element = size_bytes(output.dtype);
    const ChunkPlan chunks(output.count, element, slot_bytes);
    const auto describe = [&](std::size_t index, std::byte* slot) {
      const ElementRange chunk = chunks[index];
      std::byte* const host = slot != nullptr ? slot : host_shadow + chunk.begin * element;
      return ChunkCopies{copy_of(input.data, host, chunk, element),
                         copy_of(output.data, host, chunk, element),
                         host,
                         host,
                         chunk.count,
                         chunk.count};
    };
    StagedOperation operation = of(StagedKind::all_reduce, output.dtype);
    operation.op = op;
    pipeline_->submit(operation, chunks.size(), host_shadow == nullptr, describe, stream);
  }

  /// See CanBroadcast.
  void broadcast(BufferView buffer, int root, Stream stream) {
    pipeline_->check_device(buffer, buffer, stream);
    check_broadcast(buffer, root, size());
    std::byte* const host_shadow = host_shadow_of(buffer);
    const std::size_t element = size_bytes(buffer.dtype);
    const ChunkPlan chunks(buffer.count, element, slot_bytes);
    const auto describe = [&](std::size_t index, std::byte* slot) {
      const ElementRange chunk = chunks[index];
      std::byte* const host = slot != nullptr ? slot : host_shadow + chunk.begin * element;
      const StridedCopy copy = copy_of(buffer.data, host, chunk, element);
      return ChunkCopies{rank() == root ? copy : StridedCopy{},
                         rank() == root ? StridedCopy{} : copy,
                         host,
                         host,
                         chunk.count,
                         chunk.count};
    };
    StagedOperation operation = of(StagedKind::broadcast, buffer.dtype);
    operation.root = root;
    pipeline_->submit(operation, chunks.size(), host_shadow == nullptr, describe, stream);
  }

  /// See CanReduceScatter.
  void reduce_scatter(ConstBufferView input, BufferView output, ReduceOp op,
                      Stream stream) requires CanReduceScatter<Inner> {
    pipeline_->check_device(input, output, stream);
    check_reduce_scatter(input, output, rank(), size());
    const std::size_t element = size_bytes(output.dtype);
    const ChunkPlan chunks(output.count, element, pipeline_->room(), ranks());
    const auto describe = [&](std::size_t index, std::byte* slot) {
      const ElementRange chunk = chunks[index];
      std::byte* const own = slot + own_index() * chunk.count * element;
      return ChunkCopies{copy_of_blocks(input.data, slot, chunk, element, ranks(), output.count),
                         copy_of(output.data, own, chunk, element),
                         slot,
                         own,
                         ranks() * chunk.count,
                         chunk.count};
    };
    StagedOperation operation = of(StagedKind::reduce_scatter, output.dtype);
    operation.op = op;
    pipeline_->submit(operation, chunks.size(), true, describe, stream);
  }

  /// See CanAllGather.
  void all_gather(ConstBufferView input, BufferView output, Stream stream) requires CanAllGather<Inner> {
    pipeline_->check_device(input, output, stream);
    check_all_gather(input, output, rank(), size());
    const std::size_t element = size_bytes(input.dtype);
    const ChunkPlan chunks(input.count, element, pipeline_->room(), ranks());
    const auto describe = [&](std::size_t index, std::byte* slot) {
      const ElementRange chunk = chunks[index];
      std::byte* const own = slot + own_index() * chunk.count * element;
      return ChunkCopies{copy_of(input.data, own, chunk, element),
                         copy_of_blocks(output.data, slot, chunk, element, ranks(), input.count),
                         own,
                         slot,
                         chunk.count,
                         ranks() * chunk.count};
    };
    pipeline_->submit(of(StagedKind::all_gather, input.dtype), chunks.size(), true, describe, stream);
  }

  /// See CanExchangeBlocks.
  void exchange_blocks(const BlockExchange& blocks, ConstBufferView input, BufferView output,
                       Stream stream) requires CanStageBlocks<Inner> {
    pipeline_->check_device(input, output, stream);
    check_exchange(blocks, input, output, rank(), size());
    const ExchangeChunks chunks({blocks, input, output, rank(), pipeline_->room()});
    pipeline_->submit(of(StagedKind::exchange_blocks, input.dtype), chunks.size(), true, chunks, stream);
  }

  /// See CanReduceBlocks.
  void reduce_blocks(const BlockExchange& blocks, ConstBufferView input, BufferView output, ReduceOp op,
                     Stream stream) requires CanReduceBlocks<Inner> {
    pipeline_->check_device(input, output, stream);
    check_block_reduction(blocks, input, output, rank(), size());
    const ReductionChunks chunks({blocks, input, output, rank(), pipeline_->room()});
    StagedOperation operation = of(StagedKind::reduce_blocks, input.dtype);
    operation.op = op;
    pipeline_->submit(operation, chunks.size(), true, chunks, stream);
  }

  /// See CanSendRecv.
  void send(ConstBufferView input, int peer, Stream stream) requires CanSendRecv<Inner> {
    pipeline_->check_device(input, input, stream);
    check_message("send", input, peer, rank(), size());
    exchange(input, peer, BufferView{nullptr, 0, input.dtype, input.device}, -1, stream);
  }
  void recv(BufferView output, int peer, Stream stream) requires CanSendRecv<Inner> {
    pipeline_->check_device(output, output, stream);
    check_message("recv", output, peer, rank(), size());
    exchange(ConstBufferView(nullptr, 0, output.dtype, output.device), -1, output, peer, stream);
  }
  void send_recv(ConstBufferView input, int to, BufferView output, int from,
                 Stream stream) requires CanSendRecv<Inner> {
    pipeline_->check_device(input, output, stream);
    check_send_recv(input, to, output, from, size());
    if (input.dtype != output.dtype) {
      throw_error(
          Errc::unsupported,
          "send_recv of device memory that sends {} and receives {}; both are of one type here: call send and recv",
          {name(input.dtype), name(output.dtype)});
    }
    exchange(input, to, output, from, stream);
  }

  /// See CanBarrier.
  void barrier(Stream stream) {
    pipeline_->submit(
        of(StagedKind::barrier, DType::f32), 1, false, [](std::size_t, std::byte*) { return ChunkCopies{}; }, stream);
  }

  /// See CanSplit. Work that was enqueued runs first.
  Communicator split_blocking(int color, int key, Deadline deadline) requires CanSplit<Inner> {
    const stream::cuda::DeviceGuard guard(pipeline_->device());
    drain("a channel was split", deadline);
    Inner inner_channel = inner().split_blocking(color, key, deadline);
    ChannelContext context = pipeline_->context();
    context.members = inner_channel.members();
    context.name += format_text("/split-{}-color-{}", {++splits_, color});
    return reporting_failure(context, [&] { return Communicator(context, std::move(inner_channel), deadline); });
  }

  /// See CanAllocate: device memory. Work that was enqueued runs first. If a rank cannot allocate, the job fails.
  /// @throws Error (cuda: no memory of the device, or none to pin), and as the inner allocate_blocking
  Allocation allocate_blocking(std::size_t bytes, Deadline deadline) {
    const stream::cuda::DeviceGuard guard(pipeline_->device());
    drain("memory was allocated", deadline);
    return reporting_failure(pipeline_->context(), [&] {
      stream::cuda::DeviceBuffer device(bytes, pipeline_->device());
      pipeline_->zero_blocking(device, deadline);
      Allocation memory(std::move(device), inner().allocate_blocking(bytes, deadline));
      shadows_.add(memory.lifetime(), memory.data(), memory.bytes(), memory.host_shadow());
      return memory;
    });
  }

  /// See CanAbort.
  void abort(const Cause& cause) noexcept { pipeline_->abort(cause); }
  std::optional<Cause> failure() const { return pipeline_->failure(); }

  /// A number that grows while chunks complete. Threads: any.
  std::uint64_t progress() const noexcept { return pipeline_->progress(); }

 private:
  Inner& inner() noexcept { return pipeline_->inner(); }
  const Inner& inner() const noexcept { return std::as_const(*pipeline_).inner(); }
  std::size_t ranks() const noexcept { return static_cast<std::size_t>(size()); }
  std::size_t own_index() const noexcept { return static_cast<std::size_t>(rank()); }

  static StagedOperation of(StagedKind kind, DType dtype) noexcept {
    StagedOperation operation;
    operation.kind = kind;
    operation.dtype = dtype;
    return operation;
  }

  /// Each direction uses half a slot, so that send, recv and send_recv have chunks of the same size.
  void exchange(ConstBufferView input, int to, BufferView output, int from, Stream stream) {
    const std::size_t element = size_bytes(input.dtype);
    const ChunkPlan sent(input.count, element, slot_bytes / 2);
    const ChunkPlan received(output.count, element, slot_bytes / 2);
    const std::size_t sends = to >= 0 ? sent.size() : 0;
    const std::size_t receives = from >= 0 ? received.size() : 0;
    const auto describe = [&](std::size_t index, std::byte* slot) {
      ChunkCopies copies;
      if (index < sends) {
        copies.input = slot;
        copies.input_count = sent[index].count;
        copies.to_host = copy_of(input.data, copies.input, sent[index], element);
      }
      if (index < receives) {
        copies.output = slot + slot_bytes / 2;
        copies.output_count = received[index].count;
        copies.to_device = copy_of(output.data, copies.output, received[index], element);
      }
      return copies;
    };
    StagedOperation operation = of(StagedKind::exchange, input.dtype);
    operation.to = to;
    operation.from = from;
    pipeline_->submit(operation, std::max(sends, receives), true, describe, stream);
  }

  /// Null unless the buffer is in an allocation.
  std::byte* host_shadow_of(const BufferView& buffer) const noexcept {
    const auto found = shadows_.find(buffer.data, buffer.bytes());
    return found.value + found.offset;
  }

  /// Blocking. @throws the job's first cause, or this channel's; Error (timeout)
  void drain(const char* what_was_done, Deadline deadline) {
    const bool drained = pipeline_->drain(deadline);
    const ChannelContext& context = pipeline_->context();
    context.failure->throw_if_failed(context.reporting_rank());
    if (const std::optional<Cause> cause = failure()) {
      throw_cause(*cause);
    }
    if (!drained) {
      throw_error(Errc::timeout, "{} while operations on channel '{}' had not run by the deadline; wait for them first",
                  {what_was_done, context.name});
    }
  }

  ProcessOwned<StagingPipeline<Inner>> pipeline_;
  AllocationTable<std::byte*> shadows_;  ///< host shadows of device memory
  std::uint64_t splits_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
