#pragma once
/// @file
/// The concept Communicator: what carries bytes between the ranks of one channel.

#include <concepts>
#include <cstddef>
#include <optional>
#include <utility>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "dtrain/stream/stream.hpp"

/// The contract of every operation that takes a stream. Collective: every rank of the channel calls the same operations
/// in the same order with the same counts, dtypes, roots and reductions; a backend that notices a difference reports
/// CauseKind::disagreement. Blocking: no; it enqueues and returns. Lifetime: buffers outlive the work. Threads: one
/// thread at a time for each communicator, abort() excepted. Errors: a precondition broken by the caller throws at the
/// call; what goes wrong while the work runs fails the communicator (`failure()`), and work enqueued behind it is
/// skipped.
namespace DTRAIN_NAMESPACE::backend {
// clang-format 14 tears requires-expressions apart.
// clang-format off

/// The stream type it enqueues on, its rank (0..size-1) and the number of ranks in the channel.
template <class C>
concept HasRanks = requires(const C c) {
  typename C::Stream;
  { c.rank() } noexcept -> std::same_as<int>;
  { c.size() } noexcept -> std::same_as<int>;
} && stream::Stream<typename C::Stream>;

/// Every rank's `output` gets the reduction of all `input`s; in place where both start at the same address, else
/// disjoint.
template <class C>
concept CanAllReduce =
    HasRanks<C> &&
    requires(C c, ConstBufferView input, BufferView output, ReduceOp op, typename C::Stream stream) {
      { c.all_reduce(input, output, op, stream) } -> std::same_as<void>;
    };

/// Every rank's `buffer` gets the content of rank `root`'s.
template <class C>
concept CanBroadcast = HasRanks<C> && requires(C c, BufferView buffer, int root, typename C::Stream stream) {
  { c.broadcast(buffer, root, stream) } -> std::same_as<void>;
};

/// The work completes when every rank's stream has come to it.
template <class C>
concept CanBarrier = HasRanks<C> && requires(C c, typename C::Stream stream) {
  { c.barrier(stream) } -> std::same_as<void>;
};

/// Rank r's `output` (count elements) gets block r of the reduction of all `input`s (size * count elements); in place
/// where `output` is that block of `input`, else disjoint.
template <class C>
concept CanReduceScatter =
    HasRanks<C> &&
    requires(C c, ConstBufferView input, BufferView output, ReduceOp op, typename C::Stream stream) {
      { c.reduce_scatter(input, output, op, stream) } -> std::same_as<void>;
    };

/// Block r of every rank's `output` (size * count elements) gets rank r's `input` (count elements); in place where
/// `input` is that block of `output`, else disjoint.
template <class C>
concept CanAllGather =
    HasRanks<C> && requires(C c, ConstBufferView input, BufferView output, typename C::Stream stream) {
      { c.all_gather(input, output, stream) } -> std::same_as<void>;
    };

/// Point to point: not collective, only the two ranks named call it. `peer` is another rank of the channel, `to` and
/// `from` may be the rank itself. The k-th send of rank a to b is what the k-th recv of b from a gets, send_recv
/// counted as one of each; both give the same count and dtype, else a disagreement. A send may complete before its recv
/// was called, or not: code that is right counts on neither. `send_recv` does both at once, so that a ring in which
/// every rank sends to the next and receives from the one before goes round whatever the size; with a send before a
/// recv on every rank it would wait for ever once messages exceed what the backend buffers. Input and output are
/// disjoint.
template <class C>
concept CanSendRecv =
    HasRanks<C> && requires(C c, ConstBufferView input, BufferView output, int peer, int to, int from,
                            typename C::Stream stream) {
      { c.send(input, peer, stream) } -> std::same_as<void>;
      { c.recv(output, peer, stream) } -> std::same_as<void>;
      { c.send_recv(input, to, output, from, stream) } -> std::same_as<void>;
    };

/// Collective, blocking. A channel of its own for the ranks of one `color`, ordered by `key`, then by rank. Every rank
/// gives a color >= 0; a negative one is an invalid_argument. `members()` are the channel's, with their ranks in the job.
template <class C>
concept CanSplit = HasRanks<C> && requires(C c, int color, int key, Deadline deadline) {
  { c.split_blocking(color, key, deadline) } -> std::same_as<C>;
  { std::as_const(c).members() } noexcept -> std::same_as<const rendezvous::Membership&>;
};

/// Collective, blocking. Memory that the backend reduces without a copy: the same size on every rank, zeroed. The
/// Allocation owns it (`data()`, `bytes()`), may outlive the communicator, and is not handed out after an abort.
template <class C>
concept CanAllocate = HasRanks<C> && requires { typename C::Allocation; } && std::movable<typename C::Allocation> &&
                      requires(C c, std::size_t bytes, Deadline deadline, const typename C::Allocation memory) {
                        { c.allocate_blocking(bytes, deadline) } -> std::same_as<typename C::Allocation>;
                        { memory.data() } noexcept -> std::same_as<std::byte*>;
                        { memory.bytes() } noexcept -> std::same_as<std::size_t>;
                      };

/// From any thread, at any time: running and later work ends within milliseconds, without touching peers' memory again.
/// `failure()` is the cause for which a communicator is out of service, nothing while it serves.
template <class C>
concept CanAbort = requires(C c, const C& view, const Cause& cause) {
  { c.abort(cause) } noexcept -> std::same_as<void>;
  { view.failure() } -> std::same_as<std::optional<Cause>>;
};

/// What DistributedDataParallel with topology::Flat needs. Reduce-scatter, all-gather, send/recv and split are further
/// abilities that other topologies ask for by name. A Communicator is a movable owner of its channel.
template <class C>
concept Communicator = std::movable<C> && HasRanks<C> && CanAllReduce<C> && CanBroadcast<C> && CanBarrier<C> &&
                       CanAllocate<C> && CanAbort<C>;
// clang-format on

}  // namespace DTRAIN_NAMESPACE::backend
