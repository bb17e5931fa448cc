#pragma once
/// @file
/// staged::Communicator: collectives of device memory through a communicator of host memory, with its bits. Allocation:
/// device memory with host shadow.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "dtrain/backend/allocation_table.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/staged/chunk_copies.hpp"
#include "dtrain/backend/staged/host_worker.hpp"
#include "dtrain/backend/staged/staging_pipeline.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// Owns device memory and its host shadow, a pinned allocation of the inner backend, which reduces there without
/// another copy. Lifetime: outlives all work on it; may outlive the communicator.
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

  /// Operations, which throw Error (unsupported, invalid_argument, cuda) at the call. If the buffer of an all_reduce or
  /// a broadcast lies in an allocation, the only copies are those between device and host.
  /// @{
  void enqueue(const AllReduce& call, Stream stream) {
    check(call, stream);
    std::byte* const host_shadow = host_shadow_of(call.output);
    const std::size_t element = size_bytes(call.output.dtype);
    const ChunkPlan chunks(call.output.count, element, slot_bytes);
    const auto describe = [&](std::size_t index, std::byte* slot) {
      const ElementRange chunk = chunks[index];
      std::byte* const host = slot != nullptr ? slot : host_shadow + chunk.begin * element;
      return ChunkCopies{copy_of(call.input.data, host, chunk, element),
                         copy_of(call.output.data, host, chunk, element),
                         {host, host, chunk.count, chunk.count}};
    };
    const auto start = [op = call.op](Inner& inner, const ChunkOperands& chunk, HostStream to) {
      inner.enqueue(AllReduce{chunk.input, chunk.output, op}, to);
    };
    submit("an all_reduce", call.output.dtype, start, chunks.size(), host_shadow == nullptr, describe, stream);
  }

  void enqueue(const Broadcast& call, Stream stream) {
    check(call, stream);
    const BufferView& buffer = call.buffer;
    std::byte* const host_shadow = host_shadow_of(buffer);
    const std::size_t element = size_bytes(buffer.dtype);
    const ChunkPlan chunks(buffer.count, element, slot_bytes);
    const auto describe = [&](std::size_t index, std::byte* slot) {
      const ElementRange chunk = chunks[index];
      std::byte* const host = slot != nullptr ? slot : host_shadow + chunk.begin * element;
      const StridedCopy copy = copy_of(buffer.data, host, chunk, element);
      const bool is_root = rank() == call.root;
      return ChunkCopies{
          is_root ? copy : StridedCopy{}, is_root ? StridedCopy{} : copy, {host, host, chunk.count, chunk.count}};
    };
    const auto start = [root = call.root](Inner& inner, const ChunkOperands& chunk, HostStream to) {
      inner.enqueue(Broadcast{chunk.output, root}, to);
    };
    submit("a broadcast", buffer.dtype, start, chunks.size(), host_shadow == nullptr, describe, stream);
  }

  void enqueue(const Barrier& call, Stream stream) {
    const auto start = [call](Inner& inner, const ChunkOperands&, HostStream to) { inner.enqueue(call, to); };
    const auto describe = [](std::size_t, std::byte*) { return ChunkCopies{}; };
    submit("a barrier", DType::f32, start, 1, false, describe, stream);
  }

  void enqueue(const ReduceScatter& call, Stream stream) requires CanReduceScatter<Inner> {
    check(call, stream);
    const std::size_t element = size_bytes(call.output.dtype);
    const ChunkPlan chunks(call.output.count, element, pipeline_->room(), ranks());
    const auto describe = [&](std::size_t index, std::byte* slot) {
      const ElementRange chunk = chunks[index];
      std::byte* const own = slot + own_index() * chunk.count * element;
      return ChunkCopies{copy_of_blocks(call.input.data, slot, chunk, element, ranks(), call.output.count),
                         copy_of(call.output.data, own, chunk, element),
                         {slot, own, ranks() * chunk.count, chunk.count}};
    };
    const auto start = [op = call.op](Inner& inner, const ChunkOperands& chunk, HostStream to) {
      inner.enqueue(ReduceScatter{chunk.input, chunk.output, op}, to);
    };
    submit("a reduce_scatter", call.output.dtype, start, chunks.size(), true, describe, stream);
  }

  void enqueue(const AllGather& call, Stream stream) requires CanAllGather<Inner> {
    check(call, stream);
    const std::size_t element = size_bytes(call.input.dtype);
    const ChunkPlan chunks(call.input.count, element, pipeline_->room(), ranks());
    const auto describe = [&](std::size_t index, std::byte* slot) {
      const ElementRange chunk = chunks[index];
      std::byte* const own = slot + own_index() * chunk.count * element;
      return ChunkCopies{copy_of(call.input.data, own, chunk, element),
                         copy_of_blocks(call.output.data, slot, chunk, element, ranks(), call.input.count),
                         {own, slot, chunk.count, ranks() * chunk.count}};
    };
    const auto start = [](Inner& inner, const ChunkOperands& chunk, HostStream to) {
      inner.enqueue(AllGather{chunk.input, chunk.output}, to);
    };
    submit("an all_gather", call.input.dtype, start, chunks.size(), true, describe, stream);
  }

  /// By messages, also of empty blocks: in step d, rank r sends to r + d and receives from r - d, so that ranks cannot
  /// wait for each other in a circle. A rank that calls something else is named with these messages.
  void enqueue(const ExchangeBlocks& call, Stream stream) requires CanSendRecv<Inner> {
    check(call, stream);
    const std::size_t element = size_bytes(call.input.dtype);
    for (int distance = 0; distance < size(); ++distance) {
      const int to = (rank() + distance) % size();
      const int from = (rank() - distance + size()) % size();
      const BlockRange& sent = call.blocks.sent[static_cast<std::size_t>(to)];
      const BlockRange& received = call.blocks.received[static_cast<std::size_t>(from)];
      const bool sends = call.blocks.connects(rank(), to);
      const bool receives = call.blocks.connects(from, rank());
      SendRecv messages{call.input, sends ? to : -1, call.output, receives ? from : -1};
      messages.input.data += sent.offset * element;
      messages.input.count = sent.count;
      messages.output.data += received.offset * element;
      messages.output.count = received.count;
      const bool stays = distance == 0 && messages.input.data == messages.output.data;
      if ((sends || receives) && !stays) transfer(messages, stream);
    }
  }

  void enqueue(const ReduceBlocks& call, Stream stream) requires CanReduceBlocks<Inner> {
    check(call, stream);
    const ReductionChunks chunks({call.blocks, call.input, call.output, rank(), pipeline_->room()});
    const auto start = [op = call.op](Inner& inner, const ChunkOperands& chunk, HostStream to) {
      inner.enqueue(ReduceBlocks{*chunk.blocks, chunk.input, chunk.output, op}, to);
    };
    submit("a reduction of blocks", call.input.dtype, start, chunks.size(), true, chunks, stream);
  }

  void enqueue(const Send& call, Stream stream) requires CanSendRecv<Inner> {
    check(call, stream);
    transfer({call.input, call.peer, {nullptr, 0, call.input.dtype, call.input.device}, -1}, stream);
  }
  void enqueue(const Recv& call, Stream stream) requires CanSendRecv<Inner> {
    check(call, stream);
    transfer({{nullptr, 0, call.output.dtype, call.output.device}, -1, call.output, call.peer}, stream);
  }
  void enqueue(const SendRecv& call, Stream stream) requires CanSendRecv<Inner> {
    check(call, stream);
    if (call.input.dtype != call.output.dtype) {
      throw_error(
          Errc::unsupported,
          "send_recv of device memory that sends {} and receives {}; both are of one type here: call send and recv",
          {name(call.input.dtype), name(call.output.dtype)});
    }
    transfer(call, stream);
  }
  /// @}

  /// See CanSplit. Work that was enqueued runs first.
  Communicator split_blocking(int color, int key, Deadline deadline) requires CanSplit<Inner> {
    const stream::cuda::DeviceGuard guard(pipeline_->device());
    drain("splitting", deadline);
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
    drain("allocating memory of", deadline);
    return reporting_failure(pipeline_->context(), [&] {
      stream::cuda::DeviceBuffer device(bytes, pipeline_->device());
      stream::cuda::zero_blocking(device.data(), bytes, pipeline_->upload(), deadline);
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
  using HostStream = stream::host::StreamRef;

  Inner& inner() noexcept { return pipeline_->inner(); }
  const Inner& inner() const noexcept { return std::as_const(*pipeline_).inner(); }
  std::size_t ranks() const noexcept { return static_cast<std::size_t>(size()); }
  std::size_t own_index() const noexcept { return static_cast<std::size_t>(rank()); }

  template <class Call>
  void check(const Call& call, Stream stream) const {
    pipeline_->check_devices(call.devices(), stream);
    call.check({rank(), size()});
  }

  template <class Start, class Describe>
  void submit(const char* name, DType dtype, Start start, std::size_t chunks, bool through_slots, Describe describe,
              Stream stream) {
    pipeline_->submit(StagedOperation<Start>{name, dtype, start}, chunks, through_slots, describe, stream);
  }

  /// Each direction uses half a slot, so that send, recv and send_recv have chunks of the same size. The longer of two
  /// messages continues alone. A message without elements is also sent. A peer of -1: nothing is sent, or received.
  void transfer(const SendRecv& call, Stream stream) {
    const std::size_t element = size_bytes(call.input.dtype);
    const ChunkPlan sent(call.input.count, element, slot_bytes / 2);
    const ChunkPlan received(call.output.count, element, slot_bytes / 2);
    const std::size_t sends = call.to >= 0 ? sent.size() : 0;
    const std::size_t receives = call.from >= 0 ? received.size() : 0;
    const auto describe = [&](std::size_t index, std::byte* slot) {
      ChunkCopies copies;
      if (index < sends) {
        copies.host.input = slot;
        copies.host.input_count = sent[index].count;
        copies.to_host = copy_of(call.input.data, copies.host.input, sent[index], element);
      }
      if (index < receives) {
        copies.host.output = slot + slot_bytes / 2;
        copies.host.output_count = received[index].count;
        copies.to_device = copy_of(call.output.data, copies.host.output, received[index], element);
      }
      return copies;
    };
    const auto start = [to = call.to, from = call.from](Inner& inner, const ChunkOperands& chunk, HostStream by) {
      const bool sends_this = to >= 0 && chunk.input.data != nullptr;
      const bool receives_this = from >= 0 && chunk.output.data != nullptr;
      if (sends_this && receives_this) {
        inner.enqueue(SendRecv{chunk.input, to, chunk.output, from}, by);
      } else if (sends_this) {
        inner.enqueue(Send{chunk.input, to}, by);
      } else if (receives_this) {
        inner.enqueue(Recv{chunk.output, from}, by);
      }
    };
    submit("a send or recv", call.input.dtype, start, std::max(sends, receives), true, describe, stream);
  }

  /// Null unless the buffer is in an allocation.
  std::byte* host_shadow_of(const BufferView& buffer) const noexcept {
    const auto found = shadows_.find(buffer.data, buffer.bytes());
    return found.value + found.offset;
  }

  /// Blocking. @throws the job's first cause, or this channel's; Error (timeout)
  void drain(const char* doing, Deadline deadline) {
    const bool drained = pipeline_->drain(deadline);
    const ChannelContext& context = pipeline_->context();
    context.failure->throw_if_failed(context.reporting_rank());
    if (const std::optional<Cause> cause = failure()) {
      throw_cause(*cause);
    }
    if (!drained) {
      throw_error(Errc::timeout,
                  "{} channel '{}': operations on it are still pending at the deadline; wait for them first",
                  {doing, context.name});
    }
  }

  ProcessOwned<StagingPipeline<Inner>> pipeline_;
  AllocationTable<std::byte*> shadows_;  ///< host shadows of device memory
  std::uint64_t splits_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
