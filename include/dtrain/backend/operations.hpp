#pragma once
/// @file
/// The operations of a communicator as values (AllReduce, Broadcast and others): buffers, argument checks, and the
/// descriptor that ranks compare.

#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"

/// A communicator runs an operation by `enqueue(operation, stream)`. Each operation has:
/// - `kind`: its OperationKind; that of an operation with blocks is in its BlockExchange.
/// - `devices()`: those of its input and its output; the host for a Barrier, which has no buffer.
/// - `check(place)`: called by the communicator, before it enqueues anything. @throws Error (invalid_argument) unless
///   buffers, root and peers fit the rank's place, and the memory is valid; (unsupported) for a reduction of 8-bit
///   floats
/// - `describe()`: the descriptor that ranks compare and messages name. Its `sequence` is 0: the communicator counts.
///
/// Lifetime: buffers outlive the work. A BlockExchange lasts until enqueue() returns.
namespace DTRAIN_NAMESPACE::backend {

/// Devices of an operation's input and output.
using Devices = std::array<Device, 2>;

namespace detail {

/// @param counted has the count and type that ranks compare
inline Operation describe(OperationKind kind, const ConstBufferView& counted, int root = 0,
                          ReduceOp op = ReduceOp::sum) noexcept {
  return {.count = counted.count, .root = root, .kind = kind, .dtype = counted.dtype, .op = op};
}

}  // namespace detail

/// Every rank's `output` gets the reduction of all `input`s. Both start at the same address (in place) or are disjoint.
/// @ingroup backends
struct AllReduce {
  static constexpr OperationKind kind = OperationKind::all_reduce;

  ConstBufferView input;
  BufferView output;
  ReduceOp op;

  Devices devices() const noexcept { return {input.device, output.device}; }
  void check(RankPlace place) const;
  Operation describe() const noexcept { return detail::describe(kind, output, 0, op); }
};

/// As AllReduce; `*squares` gets the sum of the squares of the result's elements: in f64, with equal bits on every
/// rank, 0 for integers. Null: this rank needs no sum, and other ranks may. The order of the additions depends on the
/// count, the number of ranks and where the buffers are. Lifetime: `squares` outlives the work, as buffers do.
/// @ingroup backends
struct AllReduceWithSquares {
  static constexpr OperationKind kind = OperationKind::all_reduce;

  AllReduce all_reduce;
  double* squares;

  Devices devices() const noexcept { return all_reduce.devices(); }
  void check(RankPlace place) const { all_reduce.check(place); }
  Operation describe() const noexcept {
    Operation described = all_reduce.describe();
    described.sums_squares = squares != nullptr;
    return described;
  }
};

/// The AllReduce of a topology with a wire type sends f32 elements in 16 bits; this one sends them as they are. For
/// values that are not gradients, for example weights.
/// @ingroup backends
struct AllReduceWithoutCast {
  static constexpr OperationKind kind = OperationKind::all_reduce;

  AllReduce all_reduce;

  Devices devices() const noexcept { return all_reduce.devices(); }
  void check(RankPlace place) const { all_reduce.check(place); }
  Operation describe() const noexcept { return all_reduce.describe(); }
};

/// Every rank's `buffer` gets the content of the `buffer` of rank `root`.
/// @ingroup backends
struct Broadcast {
  static constexpr OperationKind kind = OperationKind::broadcast;

  BufferView buffer;
  int root;

  Devices devices() const noexcept { return {buffer.device, buffer.device}; }
  void check(RankPlace place) const;
  Operation describe() const noexcept { return detail::describe(kind, buffer, root); }
};

/// The work completes once every rank's stream has reached it.
/// @ingroup backends
struct Barrier {
  static constexpr OperationKind kind = OperationKind::barrier;

  Devices devices() const noexcept { return {}; }
  void check(RankPlace /*place*/) const noexcept {}
  Operation describe() const noexcept { return detail::describe(kind, {}); }
};

/// Rank r's `output` (count elements) gets block r of the reduction of all `input`s (size * count elements). `output`
/// is that block of `input` (in place) or disjoint.
/// @ingroup backends
struct ReduceScatter {
  static constexpr OperationKind kind = OperationKind::reduce_scatter;

  ConstBufferView input;
  BufferView output;
  ReduceOp op;

  Devices devices() const noexcept { return {input.device, output.device}; }
  void check(RankPlace place) const;
  Operation describe() const noexcept { return detail::describe(kind, output, 0, op); }
};

/// Block r of every rank's `output` (size * count elements) gets rank r's `input` (count elements). `input` is that
/// block of `output` (in place) or disjoint.
/// @ingroup backends
struct AllGather {
  static constexpr OperationKind kind = OperationKind::all_gather;

  ConstBufferView input;
  BufferView output;

  Devices devices() const noexcept { return {input.device, output.device}; }
  void check(RankPlace place) const;
  Operation describe() const noexcept { return detail::describe(kind, input); }
};

/// Called with a part of another rank's block: `bytes` at `from`, which are those from byte `begin` of the block of
/// `rank` on. The memory is readable during the call. Not called after a failure of the channel.
/// @ingroup backends
struct BlockReader {
  void* context;
  std::size_t number;  ///< free for the caller's use
  void (*read)(const BlockReader& reader, int rank, std::size_t begin, const std::byte* from,
               std::size_t bytes) noexcept;
};

/// As AllGather without an `output`: the reader of each rank is called with all parts of the other ranks' `input`s, in
/// any order, in the thread that runs the work. Lifetime: what the reader refers to, until the work has run.
/// @ingroup backends
struct ReadBlocks {
  static constexpr OperationKind kind = OperationKind::all_gather;

  ConstBufferView input;
  BlockReader reader;

  Devices devices() const noexcept { return {input.device, input.device}; }
  void check(RankPlace place) const;
  Operation describe() const noexcept { return detail::describe(kind, input); }
};

/// Block r of this rank's `input` goes to rank r, whose `output` gets it as the block of this rank: see BlockExchange.
/// The input and output are disjoint, or this rank's block of both is the same memory (in place; not in all_to_all).
/// @ingroup backends
struct ExchangeBlocks {
  const BlockExchange& blocks;
  ConstBufferView input;
  BufferView output;

  Devices devices() const noexcept { return {input.device, output.device}; }
  void check(RankPlace place) const;
  Operation describe() const noexcept { return blocks.describe(input.dtype, ReduceOp::sum); }
};

/// As ExchangeBlocks, but rank r's `output` gets the reduction of the blocks that all ranks send to it.
/// @ingroup backends
struct ReduceBlocks {
  const BlockExchange& blocks;
  ConstBufferView input;
  BufferView output;
  ReduceOp op;

  Devices devices() const noexcept { return {input.device, output.device}; }
  void check(RankPlace place) const;
  Operation describe() const noexcept { return blocks.describe(input.dtype, op); }
};

/// Point to point: only the sender and the receiver call. `peer` is another rank of the channel. See CanSendRecv.
/// @ingroup backends
struct Send {
  static constexpr OperationKind kind = OperationKind::send;

  ConstBufferView input;
  int peer;

  Devices devices() const noexcept { return {input.device, input.device}; }
  void check(RankPlace place) const;
  Operation describe() const noexcept { return detail::describe(kind, input, peer); }
};

/// `output` gets the message that rank `peer` sends.
/// @ingroup backends
struct Recv {
  static constexpr OperationKind kind = OperationKind::recv;

  BufferView output;
  int peer;

  Devices devices() const noexcept { return {output.device, output.device}; }
  void check(RankPlace place) const;
  Operation describe() const noexcept { return detail::describe(kind, output, peer); }
};

/// Sends and receives at the same time. `input` and `output` are disjoint; `to` and `from` may be the rank itself.
/// @ingroup backends
struct SendRecv {
  static constexpr OperationKind kind = OperationKind::send_recv;

  ConstBufferView input;
  int to;
  BufferView output;
  int from;

  Devices devices() const noexcept { return {input.device, output.device}; }
  void check(RankPlace place) const;
  Operation describe() const noexcept { return detail::describe(kind, input, to); }
};

/// @param backend named in the error: "backend::Gloo" @throws Error (unsupported) for device memory
void check_host_memory(const char* backend, const Devices& devices);

/// As check_host_memory, for an all_reduce. @param topology name of the topology that selects the algorithm; empty: the
/// backend selects
void check_all_reduce_memory(std::string_view topology, const char* backend, const Devices& devices);

#if DTRAIN_DEFINITIONS

namespace detail {

/// @throws Error: "all_reduce of 1024 f32" and the problem
[[noreturn]] DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_view(const char* operation, const ConstBufferView& view,
                                                                const char* problem,
                                                                Errc code = Errc::invalid_argument) {
  throw_error(code, "{} of {} {}{}", {operation, view.count, name(view.dtype), problem});
}

DTRAIN_DEFINED void check_memory(const char* operation, const ConstBufferView& view) {
  const std::size_t element = size_bytes(view.dtype);
  if (element == 0 || view.count > std::numeric_limits<std::size_t>::max() / 2 / element) {
    refuse_view(operation, view, ": no memory is that long, or holds that type");
  }
  if (view.count != 0 && view.data == nullptr) {
    refuse_view(operation, view, " was given a null address");
  }
}

/// @throws Error (unsupported) for 8-bit floats
DTRAIN_DEFINED void check_is_reduced(const char* operation, const ConstBufferView& view) {
  if (is_float8(view.dtype)) {
    refuse_view(operation, view,
                ": floats of 8 bits can be moved, and not reduced, because they have too few digits for a sum or an "
                "average; reduce them as f16, bf16 or f32",
                Errc::unsupported);
  }
}

DTRAIN_DEFINED bool overlap(const ConstBufferView& a, const ConstBufferView& b) noexcept {
  const std::less<const std::byte*> before;
  return before(a.data, b.data + b.bytes()) && before(b.data, a.data + a.bytes());
}

/// Requires:
/// - `whole` has one block as long as `part` for each rank;
/// - both are disjoint, or `part` is this rank's block of `whole` (in place).
DTRAIN_DEFINED void check_blocks(const char* operation, const char* whole_is, const ConstBufferView& whole,
                                 const char* part_is, const ConstBufferView& part, RankPlace place) {
  const std::size_t ranks = static_cast<std::size_t>(place.size);
  if (whole.dtype != part.dtype || whole.count % ranks != 0 || whole.count / ranks != part.count) {
    throw_error(Errc::invalid_argument,
                "{} on {} ranks: the {} has {} {}, the {} {} {}; give an {} that is {} times as long as the {}, of the "
                "same type",
                {operation, place.size, whole_is, whole.count, name(whole.dtype), part_is, part.count, name(part.dtype),
                 whole_is, place.size, part_is});
  }
  check_memory(operation, whole);
  check_memory(operation, part);
  if (overlap(whole, part) && part.data != whole.data + static_cast<std::size_t>(place.rank) * part.bytes()) {
    throw_error(Errc::invalid_argument,
                "the input and output of {} overlap; give disjoint memory, or this rank's block of the longer one as "
                "the shorter",
                {operation});
  }
}

DTRAIN_DEFINED void check_message(const char* operation, const ConstBufferView& buffer, int peer, RankPlace place) {
  if (peer < 0 || peer >= place.size || peer == place.rank) {
    throw_error(Errc::invalid_argument, "{} between rank {} and rank {} of {}; a peer is another rank, counted from 0",
                {operation, place.rank, peer, place.size});
  }
  check_memory(operation, buffer);
}

DTRAIN_DEFINED void check_inside(const BlockExchange& blocks, const std::vector<BlockRange>& list,
                                 const char* buffer_is, const ConstBufferView& buffer, int size) {
  bool fits = list.size() == static_cast<std::size_t>(size);
  for (const BlockRange& block : list) {
    fits = fits && block.offset <= buffer.count && block.count <= buffer.count - block.offset;
  }
  if (!fits) {
    throw_error(Errc::invalid_argument,
                "{} on {} ranks with {} blocks of {} of {} {}; give one inside it for each rank",
                {name(blocks.kind), size, list.size(), buffer_is, buffer.count, name(buffer.dtype)});
  }
}

}  // namespace detail

DTRAIN_DEFINED void AllReduce::check(RankPlace /*place*/) const {
  if (input.count != output.count || input.dtype != output.dtype) {
    throw_error(Errc::invalid_argument, "all_reduce of {} {} into {} {}; both buffers have the same length and type",
                {input.count, name(input.dtype), output.count, name(output.dtype)});
  }
  detail::check_memory("all_reduce", input);
  detail::check_memory("all_reduce", output);
  if (input.data != output.data && detail::overlap(input, output)) {
    throw_error(Errc::invalid_argument,
                "the input and output of all_reduce overlap; give the same address for both, or disjoint memory");
  }
  detail::check_is_reduced("all_reduce", output);
}

DTRAIN_DEFINED void Broadcast::check(RankPlace place) const {
  if (root < 0 || root >= place.size) {
    throw_error(Errc::invalid_argument, "broadcast from rank {} of {}; ranks are counted from 0", {root, place.size});
  }
  detail::check_memory("broadcast", buffer);
}

DTRAIN_DEFINED void ReduceScatter::check(RankPlace place) const {
  detail::check_blocks("reduce_scatter", "input", input, "output", output, place);
  detail::check_is_reduced("reduce_scatter", output);
}

DTRAIN_DEFINED void AllGather::check(RankPlace place) const {
  detail::check_blocks("all_gather", "output", output, "input", input, place);
}

DTRAIN_DEFINED void ReadBlocks::check(RankPlace /*place*/) const {
  detail::check_memory("read_blocks", input);
}

DTRAIN_DEFINED void ExchangeBlocks::check(RankPlace place) const {
  const char* const kind = name(blocks.kind);
  if (input.dtype != output.dtype) {
    throw_error(Errc::invalid_argument, "{} of {} into {}; both buffers have the same type",
                {kind, name(input.dtype), name(output.dtype)});
  }
  detail::check_memory(kind, input);
  detail::check_memory(kind, output);
  detail::check_inside(blocks, blocks.sent, "the input", input, place.size);
  detail::check_inside(blocks, blocks.received, "the output", output, place.size);
  const auto own = static_cast<std::size_t>(place.rank);
  const std::size_t element = size_bytes(input.dtype);
  const bool in_place = blocks.may_be_in_place() && input.data + blocks.sent[own].offset * element ==
                                                        output.data + blocks.received[own].offset * element;
  if (!in_place && detail::overlap(input, output)) {
    throw_error(Errc::invalid_argument, "the input and output of {} overlap; give disjoint memory{}",
                {kind, blocks.may_be_in_place() ? ", or this rank's block of the longer one as the shorter" : ""});
  }
}

DTRAIN_DEFINED void ReduceBlocks::check(RankPlace place) const {
  ExchangeBlocks{blocks, input, output}.check(place);
  detail::check_is_reduced(name(blocks.kind), input);
}

DTRAIN_DEFINED void Send::check(RankPlace place) const {
  detail::check_message("send", input, peer, place);
}

DTRAIN_DEFINED void Recv::check(RankPlace place) const {
  detail::check_message("recv", output, peer, place);
}

DTRAIN_DEFINED void SendRecv::check(RankPlace place) const {
  if (to < 0 || to >= place.size || from < 0 || from >= place.size) {
    throw_error(Errc::invalid_argument, "send_recv to rank {} and from rank {} of {}; ranks are counted from 0",
                {to, from, place.size});
  }
  detail::check_memory("send_recv", input);
  detail::check_memory("send_recv", output);
  if (detail::overlap(input, output)) {
    throw_error(Errc::invalid_argument, "the input and output of send_recv overlap; give it disjoint memory");
  }
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void check_host_memory(const char* backend, const Devices& devices) {
  for (const Device device : devices) {
    if (device.kind != DeviceKind::host) {
      throw_error(Errc::unsupported,
                  "{} takes host memory, not memory of {}; use backend::Nccl or backend::Staged for it",
                  {backend, to_string(device)});
    }
  }
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void check_all_reduce_memory(std::string_view topology, const char* backend,
                                                               const Devices& devices) {
  for (const Device device : devices) {
    if (!topology.empty() && device.kind != DeviceKind::host) {
      throw_error(Errc::unsupported,
                  "topology::{} reduces host memory, not memory of {}; use topology::Flat with a backend for it",
                  {topology, to_string(device)});
    }
  }
  check_host_memory(backend, devices);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend
