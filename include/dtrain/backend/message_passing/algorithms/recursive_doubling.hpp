#pragma once
/// @file
/// Recursive doubling, which algorithm_selection.hpp chooses for small reductions of many ranks: log2(size) exchanges.

#include <array>
#include <bit>
#include <cstddef>
#include <utility>

#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/partial_reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Recursive doubling. Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
/// operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), 4.5. Ranks beyond the largest power of two
/// first send their input to a partner, and in the end receive the result from it. Both ranks of a pair combine in the
/// same order, so their bits are equal. Requires: partial results, too, fit in a header's payload.
/// Example with 6 ranks: 4 and 5 send to 0 and 1; pairs 0-1, 2-3, then 0-2, 1-3; 0 and 1 send the result to 4 and 5.
template <Endpoint E>
Routine recursive_doubling(OperationContext<E>& context, const Buffers& buffers) {
  const int self = context.rank();
  const int whole = static_cast<int>(std::bit_floor(static_cast<unsigned>(context.size())));
  const int rest = context.size() - whole;
  const kernels::PartialReduction reduction = context.partial_reduction();
  const std::size_t count = context.operation.count;
  const std::size_t bytes = count * size_bytes(context.operation.dtype);
  const std::size_t partial_bytes = count * size_bytes(reduction.type());
  std::byte* own = context.scratch.at_least(3 * header_bytes(context));
  std::byte* const other = own + header_bytes(context);
  std::byte* spare = other + header_bytes(context);
  kernels::copy_bytes(inline_payload(own), buffers.input, bytes);
  const auto combine = [&](bool own_is_partial, bool other_is_partial, bool peer_first, bool last) {
    std::array<kernels::PartialReduction::Operand, 2> sources{
        {{inline_payload(own), own_is_partial}, {inline_payload(other), other_is_partial}}};
    if (peer_first) {
      std::swap(sources[0], sources[1]);
    }
    reduction(sources, inline_payload(spare), count, last);
    std::swap(own, spare);
  };
  if (self >= whole) {
    Routine given = exchange_headers(context, self - whole, {own, bytes}, -1, {other});
    co_await given;
    Routine got = exchange_headers(context, -1, {own}, self - whole, {other, bytes});
    co_await got;
    kernels::copy_bytes(buffers.output, inline_payload(other), bytes);
    co_return;
  }
  if (self < rest) {
    Routine got = exchange_headers(context, -1, {own}, self + whole, {other, bytes});
    co_await got;
    combine(false, false, false, false);
  }
  for (int distance = 1; distance < whole; distance *= 2) {
    const int peer = self ^ distance;
    const bool own_is_partial = distance > 1 || self < rest;
    const bool other_is_partial = distance > 1 || peer < rest;
    const HeaderMessage mine{own, own_is_partial ? partial_bytes : bytes};
    const HeaderMessage theirs{other, other_is_partial ? partial_bytes : bytes};
    Routine swap = exchange_headers(context, peer, mine, peer, theirs);
    co_await swap;
    combine(own_is_partial, other_is_partial, peer < self, distance * 2 == whole);
  }
  if (self < rest) {
    Routine given = exchange_headers(context, self + whole, {own, bytes}, -1, {other});
    co_await given;
  }
  kernels::copy_bytes(buffers.output, inline_payload(own), bytes);
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
