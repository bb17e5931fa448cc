#pragma once
/// @file
/// The concept Communicator: collectives and messages between the ranks of one channel.

#include <concepts>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "dtrain/stream/stream.hpp"

/// Contract of every operation that takes a stream.
/// - Collective: every rank of the channel calls the same operations in the same order, with the same counts, dtypes,
///   roots and reductions. A backend that detects a difference reports CauseKind::disagreement.
/// - Blocking: no; it enqueues and returns. Lifetime: buffers outlive the work.
/// - Threads: one at a time for each communicator, abort() excepted.
/// - Errors: a broken precondition throws at the call. A failure while the work runs fails the communicator
///   (`failure()`), and its later work is skipped.
namespace DTRAIN_NAMESPACE::backend {
// clang-format 14 tears requires-expressions apart.
// clang-format off

/// The stream type it enqueues on, its rank (0..size-1) and the number of ranks in the channel.
/// @ingroup backends
template <class C>
concept HasRanks = requires(const C c) {
  typename C::Stream;
  { c.rank() } noexcept -> std::same_as<int>;
  { c.size() } noexcept -> std::same_as<int>;
} && stream::Stream<typename C::Stream>;

/// Every rank's `output` gets the reduction of all `input`s. Both start at the same address (in place) or are disjoint.
/// @ingroup backends
template <class C>
concept CanAllReduce =
    HasRanks<C> &&
    requires(C c, ConstBufferView input, BufferView output, ReduceOp op, typename C::Stream stream) {
      { c.all_reduce(input, output, op, stream) } -> std::same_as<void>;
    };

/// As CanAllReduce; `*squares` gets the sum of the squares of the result's elements: in f64, with equal bits on every
/// rank, 0 for integers. Null: this rank needs no sum, and other ranks may. The order of the additions depends on the
/// count, the number of ranks and where the buffers are. Lifetime: `squares` outlives the work, as buffers do.
/// @ingroup backends
template <class C>
concept CanSumSquares =
    CanAllReduce<C> && requires(C c, ConstBufferView input, BufferView output, ReduceOp op, typename C::Stream stream,
                                double* squares) {
      { c.all_reduce(input, output, op, stream, squares) } -> std::same_as<void>;
    };

/// The all_reduce of a topology with a wire type sends f32 elements in 16 bits; all_reduce_without_cast sends them as
/// they are. For values that are not gradients, such as weights.
/// @ingroup backends
template <class C>
concept CanReduceWithoutCast =
    CanAllReduce<C> &&
    requires(C c, ConstBufferView input, BufferView output, ReduceOp op, typename C::Stream stream) {
      { c.all_reduce_without_cast(input, output, op, stream) } -> std::same_as<void>;
    };

/// Every rank's `buffer` gets the content of rank `root`'s.
/// @ingroup backends
template <class C>
concept CanBroadcast = HasRanks<C> && requires(C c, BufferView buffer, int root, typename C::Stream stream) {
  { c.broadcast(buffer, root, stream) } -> std::same_as<void>;
};

/// The work completes once every rank's stream has reached it.
/// @ingroup backends
template <class C>
concept CanBarrier = HasRanks<C> && requires(C c, typename C::Stream stream) {
  { c.barrier(stream) } -> std::same_as<void>;
};

/// Rank r's `output` (count elements) gets block r of the reduction of all `input`s (size * count elements). `output`
/// is that block of `input` (in place) or disjoint.
/// @ingroup backends
template <class C>
concept CanReduceScatter =
    HasRanks<C> &&
    requires(C c, ConstBufferView input, BufferView output, ReduceOp op, typename C::Stream stream) {
      { c.reduce_scatter(input, output, op, stream) } -> std::same_as<void>;
    };

/// Block r of every rank's `output` (size * count elements) gets rank r's `input` (count elements). `input` is that
/// block of `output` (in place) or disjoint.
/// @ingroup backends
template <class C>
concept CanAllGather =
    HasRanks<C> && requires(C c, ConstBufferView input, BufferView output, typename C::Stream stream) {
      { c.all_gather(input, output, stream) } -> std::same_as<void>;
    };

/// Called with a part of another rank's block: `bytes` at `from`, which are those from byte `begin` of the block of
/// `rank` on. The memory is readable during the call. Not called after a failure of the channel.
/// @ingroup backends
struct BlockReader {
  void* context;
  std::size_t number;  ///< for the caller's own use
  void (*read)(const BlockReader& reader, int rank, std::size_t begin, const std::byte* from,
               std::size_t bytes) noexcept;
};

/// As CanAllGather, but instead of a copy in an `output` each rank gets the other ranks' `input`s to read, all of their
/// parts in any order, in the thread that runs the work. Lifetime: what the reader refers to, until that has run.
/// @ingroup backends
template <class C>
concept CanReadBlocks =
    HasRanks<C> &&
    requires(C c, ConstBufferView input, const BlockReader& reader, typename C::Stream stream) {
      { c.read_blocks(input, reader, stream) } -> std::same_as<void>;
    };

/// Block r of this rank's `input` goes to rank r, whose `output` gets it as the block of this rank: see BlockExchange.
/// The input and output are disjoint, or this rank's block of both is the same memory (in place; not in all_to_all).
/// @ingroup backends
template <class C>
concept CanExchangeBlocks =
    HasRanks<C> && requires(C c, const BlockExchange& blocks, ConstBufferView input, BufferView output,
                            typename C::Stream stream) {
      { c.exchange_blocks(blocks, input, output, stream) } -> std::same_as<void>;
    };

/// As CanExchangeBlocks, but rank r's `output` gets the reduction of the blocks that all ranks send to it.
/// @ingroup backends
template <class C>
concept CanReduceBlocks =
    HasRanks<C> && requires(C c, const BlockExchange& blocks, ConstBufferView input, BufferView output, ReduceOp op,
                            typename C::Stream stream) {
      { c.reduce_blocks(blocks, input, output, op, stream) } -> std::same_as<void>;
    };

/// Point-to-point messages. Not collective: only sender and receiver call.
/// - `peer` is another rank of the channel; `to` and `from` may be the rank itself.
/// - The k-th recv of b from a gets the k-th send of a to b; a send_recv counts as one of each.
/// - Both ends give the same count and dtype, else the channel fails with a disagreement.
/// - A send may complete before its recv is called, or not; correct code relies on neither.
/// - send_recv sends and receives at the same time; its input and output are disjoint.
/// Example: in a ring, each rank calls send_recv(input, next, output, previous), which completes for any size. If every
/// rank called send before recv, they would deadlock once messages exceed the backend's buffers.
/// @ingroup backends
template <class C>
concept CanSendRecv =
    HasRanks<C> && requires(C c, ConstBufferView input, BufferView output, int peer, int to, int from,
                            typename C::Stream stream) {
      { c.send(input, peer, stream) } -> std::same_as<void>;
      { c.recv(output, peer, stream) } -> std::same_as<void>;
      { c.send_recv(input, to, output, from, stream) } -> std::same_as<void>;
    };

/// Opens a channel for the ranks with equal `color`, ordered by `key`, then by rank. Collective, blocking. A color < 0
/// is an Error (invalid_argument). `members()` are the channel's members, with their ranks in the job.
/// @ingroup backends
template <class C>
concept CanSplit = HasRanks<C> && requires(C c, int color, int key, Deadline deadline) {
  { c.split_blocking(color, key, deadline) } -> std::same_as<C>;
  { std::as_const(c).members() } noexcept -> std::same_as<const rendezvous::Membership&>;
};

/// Allocates zeroed memory, equally large on every rank, that the backend reduces without a copy. Collective, blocking.
/// The Allocation owns it (`data()`, `bytes()`) and may outlive the communicator. After an abort, this call throws.
/// @ingroup backends
template <class C>
concept CanAllocate = HasRanks<C> && requires { typename C::Allocation; } && std::movable<typename C::Allocation> &&
                      requires(C c, std::size_t bytes, Deadline deadline, const typename C::Allocation memory) {
                        { c.allocate_blocking(bytes, deadline) } -> std::same_as<typename C::Allocation>;
                        { memory.data() } noexcept -> std::same_as<std::byte*>;
                        { memory.bytes() } noexcept -> std::same_as<std::size_t>;
                      };

/// Several ways to all_reduce, in the same order on every rank. Variant 0 is the policy's own, and in use until
/// use_variant(), which counts from the next all_reduce that is enqueued: every rank calls it between the same
/// operations. @returns the names, which are static; empty: there is one way, number 0. A measured plan takes up to 8
/// @ingroup backends
template <class C>
concept HasVariants = requires(C c, const C& view, std::size_t variant) {
  { view.variants() } -> std::same_as<std::vector<const char*>>;
  { c.use_variant(variant) } -> std::same_as<void>;
};

/// Sums are faster or more exact than averages: DistributedDataParallel then scales gradients itself, if it can.
/// @ingroup backends
template <class C>
concept PrefersSums = requires { requires C::prefers_sums; };

/// The first operation of some size or kind waits on the host until all ranks have called it, and allocates, which a
/// capture of a CUDA graph may forbid: DistributedDataParallel makes such operations when it is constructed.
/// @ingroup backends
template <class C>
concept ConnectsAtFirstUse = requires { requires C::connects_at_first_use; };

/// Ends running and later work, within milliseconds; it touches no peer's memory afterwards. Threads: any, at any time.
/// `failure()` is the communicator's first cause; nullopt while it has not failed. An abort is final. A job that goes
/// on with fewer ranks needs two more abilities, which NCCL has since 2.28 and no backend here offers: to stop running
/// work and keep the communicator (ncclCommRevoke), and to make one of the ranks that are left (ncclCommShrink, since
/// 2.27).
/// @ingroup backends
template <class C>
concept CanAbort = requires(C c, const C& view, const Cause& cause) {
  { c.abort(cause) } noexcept -> std::same_as<void>;
  { view.failure() } -> std::same_as<std::optional<Cause>>;
};

/// Operations that DistributedDataParallel with topology::Flat needs. Other topologies require further concepts:
/// CanReduceScatter, CanAllGather, CanSendRecv, CanSplit. Groups use CanExchangeBlocks and CanReduceBlocks.
/// A Communicator is a movable owner of its channel.
/// @ingroup backends
template <class C>
concept Communicator = std::movable<C> && HasRanks<C> && CanAllReduce<C> && CanBroadcast<C> && CanBarrier<C> &&
                       CanAllocate<C> && CanAbort<C>;
// clang-format on

}  // namespace DTRAIN_NAMESPACE::backend
