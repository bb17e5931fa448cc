#pragma once
/// @file
/// Large all_reduce and reduce_scatter among few ranks: every block goes straight to the rank that reduces it.

#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/blocks.hpp"
#include "dtrain/backend/message_passing/call.hpp"
#include "dtrain/backend/message_passing/exchange.hpp"
#include "dtrain/backend/message_passing/opening.hpp"
#include "dtrain/backend/message_passing/ring.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {
namespace detail {

/// Numbers messages as RingRun does; message m goes to, and comes from, every peer. A round has a step in which the
/// owner of each block gets it from all, and one in which it gives its result to all.
template <Wire W>
class AllToAllRun {
 public:
  AllToAllRun(Call<W>& call, const RingWork& work, std::byte* slots) noexcept
      : call_(call), work_(work), slots_(slots), lanes_(work.blocks.lanes()), steps_(work.gathers ? 2 : 1) {}

  std::size_t messages() const noexcept { return work_.blocks.rounds() * steps_ * lanes_; }

  std::span<const std::byte> outgoing(std::size_t m, int peer) const noexcept {
    const bool gives = is_result(m);
    const Extent extent = extent_of(m, gives ? call_.rank() : peer);
    return {(gives ? work_.output : work_.input) + extent.offset, extent.bytes};
  }

  std::span<std::byte> incoming(std::size_t m, int peer) const noexcept {
    const bool gives = is_result(m);
    const Extent extent = extent_of(m, gives ? peer : call_.rank());
    return {gives ? work_.output + extent.offset : slot(m, peer), extent.bytes};
  }

  /// Message `m` of every peer is here. In rank order, with one rounding at the end.
  void arrived(std::size_t m) const noexcept {
    if (is_result(m)) {
      return;
    }
    const Extent extent = extent_of(m, call_.rank());
    std::array<const std::byte*, most_exchange_ranks> sources{};
    for (int rank = 0; rank < call_.size(); ++rank) {
      sources[static_cast<std::size_t>(rank)] = rank == call_.rank() ? work_.input + extent.offset : slot(m, rank);
    }
    const std::size_t own = static_cast<std::size_t>(call_.rank()) * work_.blocks.block_bytes();
    const std::array<std::byte*, 1> targets{work_.output + extent.offset - (work_.gathers ? 0 : own)};
    kernels::Reduction::of(call_.operation.dtype, call_.operation.op)(
        std::span(sources).first(static_cast<std::size_t>(call_.size())), targets, extent.count);
  }

 private:
  bool is_result(std::size_t m) const noexcept { return m / lanes_ % steps_ == 1; }
  Extent extent_of(std::size_t m, int block) const noexcept {
    return work_.blocks.chunk(block, m / lanes_ / steps_, m % lanes_);
  }
  std::byte* slot(std::size_t m, int peer) const noexcept {
    return slots_ + (m % lanes_ * static_cast<std::size_t>(call_.size()) + static_cast<std::size_t>(peer)) *
                        work_.blocks.chunk_bytes();
  }

  Call<W>& call_;
  const RingWork& work_;
  std::byte* slots_;
  std::size_t lanes_;
  std::size_t steps_;
};

}  // namespace detail

/// The bytes of a ring in 2 steps instead of 2 (size - 1), each element read and written once where it is reduced, and
/// the bits of SharedMemory. Between hosts a ring meets fewer bottlenecks. @param work reduces; at most
/// most_exchange_ranks
template <Wire W>
Routine all_to_all(Call<W>& call, const RingWork& work) {
  using Ticket = typename W::Ticket;
  const std::size_t lanes = work.blocks.lanes();
  const std::size_t size = static_cast<std::size_t>(call.size());
  const std::size_t opening = opening_bytes(call);
  std::byte* const memory = call.scratch.at_least((size + 1) * opening + lanes * size * work.blocks.chunk_bytes());
  const auto heard = [&](int peer) { return memory + static_cast<std::size_t>(peer + 1) * opening; };
  const detail::AllToAllRun<W> run(call, work, memory + (size + 1) * opening);
  const std::size_t messages = run.messages();
  std::array<Ticket, most_exchange_ranks> hello;
  std::array<Ticket, most_exchange_ranks> answer;
  std::array<std::array<Ticket, most_exchange_ranks>, most_lanes> sent;
  std::array<std::array<Ticket, most_exchange_ranks>, most_lanes> received;
  const auto start = [&](std::size_t m) {
    for (int distance = 1; distance < call.size(); ++distance) {
      const int peer = call.before(distance);
      received[m % lanes][static_cast<std::size_t>(peer)] =
          call.wire.recv(run.incoming(m, peer), peer, Lane::collective);
    }
    for (int distance = 1; distance < call.size(); ++distance) {
      const int peer = call.after(distance);
      sent[m % lanes][static_cast<std::size_t>(peer)] = call.wire.send(run.outgoing(m, peer), peer, Lane::collective);
    }
  };
  const std::span<const std::byte> message = write_opening(call, memory, {});
  for (int distance = 1; distance < call.size(); ++distance) {
    const auto peer = static_cast<std::size_t>(call.after(distance));
    hello[peer] = call.wire.send(message, call.after(distance), Lane::collective);
    const auto other = static_cast<std::size_t>(call.before(distance));
    answer[other] =
        call.wire.recv(opening_memory(call, heard(call.before(distance))), call.before(distance), Lane::collective);
  }
  for (std::size_t m = 0; m < lanes; ++m) {
    start(m);
  }
  for (int distance = 1; distance < call.size(); ++distance) {
    const int peer = call.before(distance);
    const std::size_t bytes = co_await call.wire.done(answer[static_cast<std::size_t>(peer)]);
    check_opening(call, peer, heard(peer), bytes, 0);
  }
  for (std::size_t m = 0; m < messages; ++m) {
    for (int distance = 1; distance < call.size(); ++distance) {
      const int peer = call.before(distance);
      const std::size_t bytes = co_await call.wire.done(received[m % lanes][static_cast<std::size_t>(peer)]);
      check_length(call, peer, bytes, run.incoming(m, peer).size());
    }
    run.arrived(m);
    for (int distance = 1; distance < call.size(); ++distance) {
      co_await call.wire.done(sent[m % lanes][static_cast<std::size_t>(call.after(distance))]);
    }
    if (m + lanes < messages) {
      start(m + lanes);
    }
  }
  for (int distance = 1; distance < call.size(); ++distance) {
    co_await call.wire.done(hello[static_cast<std::size_t>(call.after(distance))]);
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
