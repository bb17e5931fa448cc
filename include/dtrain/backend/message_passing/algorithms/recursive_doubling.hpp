#pragma once
/// @file
/// Recursive doubling for small reductions of many ranks: log2(size) exchanges over growing distances.

#include <array>
#include <bit>
#include <cstddef>
#include <span>
#include <utility>

#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/partial_reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// `bytes` for `count` elements. As partial results, they also fit in a header's payload.
struct RecursiveDoubling {
  const std::byte* input;
  std::byte* output;
  std::size_t bytes;
  std::size_t count;
};

namespace detail {

/// A rank's partial result, stored as the payload of a header.
struct PartialResult {
  std::byte* memory;
  std::size_t bytes;
};

/// Sends `own` and receives the peer's into `other`.
template <Endpoint E>
Routine exchange_partial_results(OperationContext<E>& context, int peer, PartialResult own, PartialResult other) {
  using MessageHandle = typename E::MessageHandle;
  const MessageHandle received =
      context.endpoint.recv(header_memory(context, other.memory), peer, TagClass::collective);
  const std::span<const std::byte> message = write_header(context, own.memory, {inline_payload(own.memory), own.bytes});
  const MessageHandle sent = context.endpoint.send(message, peer, TagClass::collective);
  const std::size_t length = co_await context.endpoint.done(received);
  check_header(context, peer, other.memory, length, other.bytes);
  co_await context.endpoint.done(sent);
}

template <Endpoint E>
Routine send_partial_result(OperationContext<E>& context, int peer, std::byte* own, std::size_t bytes) {
  const typename E::MessageHandle sent =
      context.endpoint.send(write_header(context, own, {inline_payload(own), bytes}), peer, TagClass::collective);
  co_await context.endpoint.done(sent);
}

template <Endpoint E>
Routine receive_partial_result(OperationContext<E>& context, int peer, std::byte* other, std::size_t bytes) {
  const typename E::MessageHandle received =
      context.endpoint.recv(header_memory(context, other), peer, TagClass::collective);
  const std::size_t length = co_await context.endpoint.done(received);
  check_header(context, peer, other, length, bytes);
}

}  // namespace detail

/// Recursive doubling. Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
/// operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), 4.5. Ranks beyond the largest power of two
/// first send their input to a partner, and in the end receive the result from it. Both ranks of a pair combine in the
/// same order, so their bits are equal.
/// Example with 6 ranks: 4 and 5 send to 0 and 1; pairs 0-1, 2-3, then 0-2, 1-3; 0 and 1 send the result to 4 and 5.
template <Endpoint E>
Routine recursive_doubling(OperationContext<E>& context, const RecursiveDoubling& work) {
  const int self = context.rank();
  const int whole = static_cast<int>(std::bit_floor(static_cast<unsigned>(context.size())));
  const int rest = context.size() - whole;
  const kernels::PartialReduction reduction = context.partial_reduction();
  const std::size_t partial_bytes = work.count * size_bytes(reduction.type());
  std::byte* own = context.scratch.at_least(3 * header_bytes(context));
  std::byte* const other = own + header_bytes(context);
  std::byte* spare = other + header_bytes(context);
  kernels::copy_bytes(inline_payload(own), work.input, work.bytes);
  const auto combine = [&](bool own_is_partial, bool other_is_partial, bool peer_first, bool last) {
    std::array<kernels::PartialReduction::Operand, 2> sources{
        {{inline_payload(own), own_is_partial}, {inline_payload(other), other_is_partial}}};
    if (peer_first) {
      std::swap(sources[0], sources[1]);
    }
    reduction(sources, inline_payload(spare), work.count, last);
    std::swap(own, spare);
  };
  if (self >= whole) {
    Routine given = detail::send_partial_result(context, self - whole, own, work.bytes);
    co_await given;
    Routine got = detail::receive_partial_result(context, self - whole, other, work.bytes);
    co_await got;
    kernels::copy_bytes(work.output, inline_payload(other), work.bytes);
    co_return;
  }
  if (self < rest) {
    Routine got = detail::receive_partial_result(context, self + whole, other, work.bytes);
    co_await got;
    combine(false, false, false, false);
  }
  for (int distance = 1; distance < whole; distance *= 2) {
    const int peer = self ^ distance;
    const bool own_is_partial = distance > 1 || self < rest;
    const bool other_is_partial = distance > 1 || peer < rest;
    const detail::PartialResult mine{own, own_is_partial ? partial_bytes : work.bytes};
    const detail::PartialResult theirs{other, other_is_partial ? partial_bytes : work.bytes};
    Routine swap = detail::exchange_partial_results(context, peer, mine, theirs);
    co_await swap;
    combine(own_is_partial, other_is_partial, peer < self, distance * 2 == whole);
  }
  if (self < rest) {
    Routine given = detail::send_partial_result(context, self + whole, own, work.bytes);
    co_await given;
  }
  kernels::copy_bytes(work.output, inline_payload(own), work.bytes);
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
