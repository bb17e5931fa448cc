#pragma once
/// @file
/// Small reductions and all-gathers of few ranks: everybody sends to everybody, once.

#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/call.hpp"
#include "dtrain/backend/message_passing/opening.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

inline constexpr int most_exchange_ranks = 16;

/// Each rank gets `bytes` from every other. Reduces them in rank order, or lays them side by side.
struct ExchangeWork {
  const std::byte* input;  ///< `blocks` long blocks for the ranks, or one block for all
  std::byte* output;
  std::size_t bytes;  ///< of a block
  std::size_t count;  ///< the same, in elements
  bool blocks;        ///< each rank is sent its own part of the input
  bool reduces;
};

template <Wire W>
Routine exchange(Call<W>& call, const ExchangeWork& work) {
  using Ticket = typename W::Ticket;
  const int size = call.size();
  const int self = call.rank();
  const std::size_t opening = opening_bytes(call);
  std::byte* const memory = call.scratch.at_least(2 * static_cast<std::size_t>(size) * opening);
  const auto sent_memory = [&](int peer) {
    return memory + static_cast<std::size_t>(work.blocks ? peer : self) * opening;
  };
  const auto heard = [&](int peer) { return memory + static_cast<std::size_t>(size + peer) * opening; };
  const auto part_for = [&](int peer) {
    const std::size_t offset = work.blocks ? static_cast<std::size_t>(peer) * work.bytes : 0;
    return std::span(work.input + offset, work.bytes);
  };
  std::array<Ticket, most_exchange_ranks> sent;
  std::array<Ticket, most_exchange_ranks> received;
  for (int distance = 1; distance < size; ++distance) {
    const int peer = call.before(distance);
    received[static_cast<std::size_t>(peer)] =
        call.wire.recv(opening_memory(call, heard(peer)), peer, Lane::collective);
  }
  std::span<const std::byte> message;
  for (int distance = 1; distance < size; ++distance) {
    const int peer = call.after(distance);
    if (work.blocks || distance == 1) {
      message = write_opening(call, sent_memory(peer), part_for(peer));
    }
    sent[static_cast<std::size_t>(peer)] = call.wire.send(message, peer, Lane::collective);
  }
  for (int peer = 0; peer < size; ++peer) {
    if (peer != self) {
      const std::size_t bytes = co_await call.wire.done(received[static_cast<std::size_t>(peer)]);
      check_opening(call, peer, heard(peer), bytes, work.bytes);
    }
  }
  const auto part_of = [&](int peer) { return peer == self ? part_for(self).data() : behind_opening(heard(peer)); };
  if (work.reduces) {
    std::array<const std::byte*, most_exchange_ranks> sources{};
    for (int peer = 0; peer < size; ++peer) {
      sources[static_cast<std::size_t>(peer)] = part_of(peer);
    }
    const std::array<std::byte*, 1> targets{work.output};
    kernels::Reduction::of(call.operation.dtype, call.operation.op)(
        std::span(sources).first(static_cast<std::size_t>(size)), targets, work.count);
  } else {
    for (int peer = 0; peer < size; ++peer) {
      std::byte* const target = work.output + static_cast<std::size_t>(peer) * work.bytes;
      if (target != part_of(peer)) {
        kernels::copy_bytes(target, part_of(peer), work.bytes);
      }
    }
  }
  for (int peer = 0; peer < size; ++peer) {
    if (peer != self) {
      co_await call.wire.done(sent[static_cast<std::size_t>(peer)]);
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
