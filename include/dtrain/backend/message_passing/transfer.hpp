#pragma once
/// @file
/// The user's messages: a send, a receive, or both at once.

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/call.hpp"
#include "dtrain/backend/message_passing/opening.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// A rank of -1 stands for: nothing goes there, or comes from there. `sent` is what this rank says of `input`; the
/// call's own operation is what the sender is to say of `output`.
struct TransferWork {
  std::span<const std::byte> input;
  std::span<std::byte> output;
  int to;
  int from;
  Operation sent;
};

/// What is small travels in the opening; what is longer follows it in pieces, of which two are under way each way. A
/// piece is received before one is waited for, so that it goes round whoever sends to whom.
template <Wire W>
Routine transfer(Call<W>& call, const TransferWork& work) {
  using Ticket = typename W::Ticket;
  const std::size_t small = call.place.tuning.small_bytes;
  const std::size_t most = call.place.tuning.piece_bytes;
  const auto pieces = [&](std::size_t bytes) { return bytes <= small ? 0 : (bytes + most - 1) / most; };
  const std::size_t sends = work.to < 0 ? 0 : pieces(work.input.size());
  const std::size_t receives = work.from < 0 ? 0 : pieces(work.output.size());
  std::byte* const memory = call.scratch.at_least(2 * opening_bytes(call));
  std::byte* const heard = memory + opening_bytes(call);
  std::array<Ticket, 2> sent;
  std::array<Ticket, 2> received;
  const auto start = [&](std::size_t piece) {
    const std::size_t begin = piece * most;
    if (piece < receives) {
      const std::span<std::byte> part = work.output.subspan(begin, std::min(most, work.output.size() - begin));
      received[piece % 2] = call.wire.recv(part, work.from, Lane::direct);
    }
    if (piece < sends) {
      const std::span<const std::byte> part = work.input.subspan(begin, std::min(most, work.input.size() - begin));
      sent[piece % 2] = call.wire.send(part, work.to, Lane::direct);
    }
  };
  Ticket opening;
  Ticket answer;
  if (work.from >= 0) {
    answer = call.wire.recv(opening_memory(call, heard), work.from, Lane::direct);
  }
  if (work.to >= 0) {
    const std::span<const std::byte> inside = work.input.first(sends == 0 ? work.input.size() : 0);
    opening = call.wire.send(write_opening(memory, inside, work.sent), work.to, Lane::direct);
  }
  start(0);
  if (work.from >= 0) {
    const std::size_t inside = receives == 0 ? work.output.size() : 0;
    const std::size_t bytes = co_await call.wire.done(answer);
    check_opening(call, work.from, heard, bytes, inside);
    if (inside > 0) {
      kernels::copy_bytes(work.output.data(), behind_opening(heard), inside);
    }
  }
  for (std::size_t piece = 0; piece < std::max(sends, receives); ++piece) {
    start(piece + 1);
    if (piece < receives) {
      const std::size_t bytes = co_await call.wire.done(received[piece % 2]);
      check_length(call, work.from, bytes, std::min(most, work.output.size() - piece * most));
    }
    if (piece < sends) {
      co_await call.wire.done(sent[piece % 2]);
    }
  }
  if (work.to >= 0) {
    co_await call.wire.done(opening);
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
