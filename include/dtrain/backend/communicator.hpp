#pragma once
/// @file
/// The concept Communicator: a movable owner of one channel, on whose streams a rank enqueues collectives; a concept
/// for each operation (CanAllGather).

#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/backend/operations.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "dtrain/stream/stream.hpp"

/// Contract of enqueue(operation, stream), for every operation.
/// - Collective: every rank of the channel calls the same operations in the same order, with the same counts, dtypes,
///   roots and reductions. A backend that detects a difference reports CauseKind::disagreement.
/// - Blocking: no; it returns once the work is enqueued. Lifetime: buffers outlive the work.
/// - Threads: one at a time for each communicator, abort() excepted.
/// - Errors: a broken precondition throws at the call. A failure while the work runs fails the communicator
///   (`failure()`), and its later work is skipped.
namespace DTRAIN_NAMESPACE::backend {
// clang-format off

/// A communicator has a stream type, the rank (0..size-1) and the number of ranks in its channel.
/// @ingroup backends
template <class C>
concept HasRanks = requires(const C c) {
  typename C::Stream;
  { c.rank() } noexcept -> std::same_as<int>;
  { c.size() } noexcept -> std::same_as<int>;
} && stream::Stream<typename C::Stream>;

/// The communicator runs operations of the type `Operation` (operations.hpp). It calls check(place) of each first. A
/// wrapper of another communicator, whose enqueue() is a template for all operations, constrains it: `requires
/// backend::Supports<Inner, Operation>`.
/// @ingroup backends
template <class C, class Operation>
concept Supports = HasRanks<C> && requires(C c, const Operation& operation, typename C::Stream stream) {
  { c.enqueue(operation, stream) } -> std::same_as<void>;
};

/// The communicator runs AllReduce.
/// @ingroup backends
template <class C>
concept CanAllReduce = Supports<C, AllReduce>;

/// The communicator runs AllReduceWithSquares.
/// @ingroup backends
template <class C>
concept CanSumSquares = CanAllReduce<C> && Supports<C, AllReduceWithSquares>;

/// The communicator runs AllReduceWithoutCast.
/// @ingroup backends
template <class C>
concept CanReduceWithoutCast = CanAllReduce<C> && Supports<C, AllReduceWithoutCast>;

/// The communicator runs Broadcast.
/// @ingroup backends
template <class C>
concept CanBroadcast = Supports<C, Broadcast>;

/// The communicator runs Barrier.
/// @ingroup backends
template <class C>
concept CanBarrier = Supports<C, Barrier>;

/// The communicator runs ReduceScatter.
/// @ingroup backends
template <class C>
concept CanReduceScatter = Supports<C, ReduceScatter>;

/// The communicator runs AllGather.
/// @ingroup backends
template <class C>
concept CanAllGather = Supports<C, AllGather>;

/// The communicator runs several all-gathers as one operation. Lifetime: the span, until enqueue() returns.
/// @ingroup backends
template <class C>
concept CanGroupAllGathers = CanAllGather<C> && Supports<C, std::span<const AllGather>>;

/// The communicator runs ReadBlocks.
/// @ingroup backends
template <class C>
concept CanReadBlocks = Supports<C, ReadBlocks>;

/// The communicator runs ExchangeBlocks.
/// @ingroup backends
template <class C>
concept CanExchangeBlocks = Supports<C, ExchangeBlocks>;

/// The communicator runs ReduceBlocks.
/// @ingroup backends
template <class C>
concept CanReduceBlocks = Supports<C, ReduceBlocks>;

/// Point-to-point messages.
/// - The k-th recv of b from a gets the k-th send of a to b; a send_recv counts as one of each.
/// - Both ends give the same count and dtype, else the channel fails with a disagreement.
/// - A send may complete before its recv is called, or not; correct code relies on neither.
/// Example: in a ring, each rank enqueues SendRecv{input, next, output, previous}, which completes for any size. If
/// every rank enqueued a Send before its Recv, they would deadlock once messages exceed the backend's buffers.
/// @ingroup backends
template <class C>
concept CanSendRecv = Supports<C, Send> && Supports<C, Recv> && Supports<C, SendRecv>;

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

/// Several ways to all_reduce, in the same order on every rank. Variant 0, the policy's own, is in use until
/// use_variant(), which applies from the next enqueued all_reduce on: every rank calls use_variant() between the same
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
/// capture of a CUDA graph may forbid: DistributedDataParallel and ShardedOptimizer make such ones at construction.
/// @ingroup backends
template <class C>
concept ConnectsAtFirstUse = requires { requires C::connects_at_first_use; };

/// abort() ends running and later work within milliseconds; the communicator touches no peer's memory afterwards.
/// Threads: any, at any time. `failure()` is the communicator's first cause; nullopt while it has not failed. An abort
/// is final. A job that goes on with fewer ranks needs two more abilities, which NCCL has since 2.28 and no backend
/// here offers: to stop running work and keep the communicator (ncclCommRevoke), and to make one of the ranks that are
/// left (ncclCommShrink, since 2.27).
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
