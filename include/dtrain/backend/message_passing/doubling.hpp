#pragma once
/// @file
/// Small reductions of many ranks: in log2(size) exchanges with ranks further and further away.

#include <array>
#include <bit>
#include <cstddef>
#include <span>
#include <utility>

#include "dtrain/backend/message_passing/call.hpp"
#include "dtrain/backend/message_passing/opening.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/core/dtype.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/partial_reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// `bytes` of `count` elements. As partial results, too, they fit behind an opening.
struct DoublingWork {
  const std::byte* input;
  std::byte* output;
  std::size_t bytes;
  std::size_t count;
};

namespace detail {

/// What a rank has so far, behind the room for an opening.
struct Part {
  std::byte* memory;
  std::size_t bytes;
};

/// Sends `own` and receives the peer's into `other`.
template <Wire W>
Routine swap_parts(Call<W>& call, int peer, Part own, Part other) {
  using Ticket = typename W::Ticket;
  const Ticket received = call.wire.recv(opening_memory(call, other.memory), peer, Lane::collective);
  const std::span<const std::byte> message = write_opening(call, own.memory, {behind_opening(own.memory), own.bytes});
  const Ticket sent = call.wire.send(message, peer, Lane::collective);
  const std::size_t length = co_await call.wire.done(received);
  check_opening(call, peer, other.memory, length, other.bytes);
  co_await call.wire.done(sent);
}

template <Wire W>
Routine send_part(Call<W>& call, int peer, std::byte* own, std::size_t bytes) {
  const typename W::Ticket sent =
      call.wire.send(write_opening(call, own, {behind_opening(own), bytes}), peer, Lane::collective);
  co_await call.wire.done(sent);
}

template <Wire W>
Routine receive_part(Call<W>& call, int peer, std::byte* other, std::size_t bytes) {
  const typename W::Ticket received = call.wire.recv(opening_memory(call, other), peer, Lane::collective);
  const std::size_t length = co_await call.wire.done(received);
  check_opening(call, peer, other, length, bytes);
}

}  // namespace detail

/// Recursive doubling. Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication
/// operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), 4.5. Ranks beyond the largest power of two hand
/// theirs to a partner first and get the result from it. Two ranks combine in the same order on both: the same bits.
template <Wire W>
Routine doubling(Call<W>& call, const DoublingWork& work) {
  const int self = call.rank();
  const int whole = static_cast<int>(std::bit_floor(static_cast<unsigned>(call.size())));
  const int rest = call.size() - whole;
  const kernels::PartialReduction reduction = call.partial_reduction();
  const std::size_t partial_bytes = work.count * size_bytes(reduction.type());
  std::byte* own = call.scratch.at_least(3 * opening_bytes(call));
  std::byte* const other = own + opening_bytes(call);
  std::byte* spare = other + opening_bytes(call);
  kernels::copy_bytes(behind_opening(own), work.input, work.bytes);
  const auto combine = [&](bool own_is_partial, bool other_is_partial, bool peer_first, bool last) {
    std::array<kernels::PartialReduction::Source, 2> sources{
        {{behind_opening(own), own_is_partial}, {behind_opening(other), other_is_partial}}};
    if (peer_first) {
      std::swap(sources[0], sources[1]);
    }
    reduction(sources, behind_opening(spare), work.count, last);
    std::swap(own, spare);
  };
  if (self >= whole) {
    Routine given = detail::send_part(call, self - whole, own, work.bytes);
    co_await given;
    Routine got = detail::receive_part(call, self - whole, other, work.bytes);
    co_await got;
    kernels::copy_bytes(work.output, behind_opening(other), work.bytes);
    co_return;
  }
  if (self < rest) {
    Routine got = detail::receive_part(call, self + whole, other, work.bytes);
    co_await got;
    combine(false, false, false, false);
  }
  for (int distance = 1; distance < whole; distance *= 2) {
    const int peer = self ^ distance;
    const bool own_is_partial = distance > 1 || self < rest;
    const bool other_is_partial = distance > 1 || peer < rest;
    const detail::Part mine{own, own_is_partial ? partial_bytes : work.bytes};
    const detail::Part theirs{other, other_is_partial ? partial_bytes : work.bytes};
    Routine swap = detail::swap_parts(call, peer, mine, theirs);
    co_await swap;
    combine(own_is_partial, other_is_partial, peer < self, distance * 2 == whole);
  }
  if (self < rest) {
    Routine given = detail::send_part(call, self + whole, own, work.bytes);
    co_await given;
  }
  kernels::copy_bytes(work.output, behind_opening(own), work.bytes);
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
