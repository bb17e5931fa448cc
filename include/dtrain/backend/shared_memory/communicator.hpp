#pragma once
/// @file
/// Communicator of ranks that share one host's memory.

#include <cstddef>
#include <memory>
#include <optional>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/message_passing/selected_all_reduce.hpp"
#include "dtrain/backend/shared_memory/allocation.hpp"
#include "dtrain/backend/shared_memory/collectives/mailbox_endpoint.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Owns one rank's channel. Reduces every DType but 8-bit floats, by every ReduceOp, in rank order (see
/// kernels::Reduction): equal bits for every memory, path, progress mode and timing. Work runs in the thread that waits
/// for the stream, or in its helper thread. A rank that waits for peers spins, then sleeps. Threads: one at a time;
/// abort() and failure() from any. The destructor skips work that has not run.
class Communicator {
 public:
  using Stream = stream::host::StreamRef;
  using Allocation = shared_memory::Allocation;
  using Endpoint = MailboxEndpoint;
  using SelectedAllReduce = message_passing::SelectedAllReduce<Endpoint>;

  /// Collective, blocking. Called by SharedMemory::open_blocking and split_blocking. Communicators split from this one
  /// have its `selected`, too. @throws Error (unsupported, limit, out_of_memory, timeout, closed), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline,
                                    const SelectedAllReduce& selected = {});

  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  ~Communicator();

  int rank() const noexcept;
  int size() const noexcept;
  const rendezvous::Membership& members() const noexcept;

  /// See CanAllReduce and CanSumSquares. Copies nothing if it is in place on an allocation; the sum of squares is then
  /// that of the ranks' slices in rank order, else each rank's own. An algorithm that a topology has selected passes
  /// all elements through mailboxes. All operations throw Error (unsupported, invalid_argument) at the call.
  void all_reduce(ConstBufferView input, BufferView output, ReduceOp op, Stream stream, double* squares = nullptr);

  /// See CanBroadcast.
  void broadcast(BufferView buffer, int root, Stream stream);

  /// See CanReduceScatter. `output` may be this rank's block of `input`. Copies nothing if all inputs are in one
  /// allocation.
  void reduce_scatter(ConstBufferView input, BufferView output, ReduceOp op, Stream stream);

  /// See CanAllGather. `input` may be this rank's block of `output`. If all inputs are in one allocation, each reader
  /// copies them once.
  void all_gather(ConstBufferView input, BufferView output, Stream stream);

  /// See CanReadBlocks. If all inputs are in one allocation, the parts are of the peers' own memory; else of copies.
  void read_blocks(ConstBufferView input, const BlockReader& reader, Stream stream);

  /// See CanExchangeBlocks. If all inputs are in one allocation, each reader copies its blocks once; otherwise every
  /// rank publishes its blocks chunk by chunk. Allocates a copy of `blocks`.
  void exchange_blocks(const BlockExchange& blocks, ConstBufferView input, BufferView output, Stream stream);

  /// See CanReduceBlocks. Copies nothing if all inputs are in one allocation. Allocates a copy of `blocks`.
  void reduce_blocks(const BlockExchange& blocks, ConstBufferView input, BufferView output, ReduceOp op, Stream stream);

  /// See CanSendRecv. A message of up to 128 KiB does not wait for its receiver if no other is in flight.
  void send(ConstBufferView input, int peer, Stream stream);
  void recv(BufferView output, int peer, Stream stream);
  void send_recv(ConstBufferView input, int to, BufferView output, int from, Stream stream);

  /// See CanBarrier.
  void barrier(Stream stream);

  /// See CanSplit. @throws Error (invalid_argument) at the call for a negative color; as open_blocking
  Communicator split_blocking(int color, int key, Deadline deadline);

  /// See CanAllocate. Each rank's memory is aligned to pages, from 2 MiB on to huge pages; its pages are on the rank's
  /// own NUMA node. An error occurs on every rank, and the channel stays usable.
  /// @throws Error (disagreement, out_of_memory, timeout), JobFailed
  Allocation allocate_blocking(std::size_t bytes, Deadline deadline);

  /// See CanAbort. Peers' communicators on this channel fail with the same cause.
  void abort(const Cause& cause) noexcept;
  std::optional<Cause> failure() const;

 private:
  struct ChannelOwner;

  explicit Communicator(ProcessOwned<ChannelOwner> owner) noexcept;

  ProcessOwned<ChannelOwner> owner_;
};

static_assert(backend::Communicator<Communicator> && CanSumSquares<Communicator> && CanReadBlocks<Communicator>);

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

#if DTRAIN_DEFINITIONS
#include "dtrain/backend/shared_memory/communicator_definitions.hpp"
#endif
