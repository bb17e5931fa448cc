#pragma once
/// @file
/// Broadcast: small buffers down a tree, large ones along a chain of ranks in chunks.

#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/blocks.hpp"
#include "dtrain/backend/message_passing/call.hpp"
#include "dtrain/backend/message_passing/opening.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

namespace detail {

/// Who sends to whom depends on the root, and ranks that differ on it would wait for each other, or for nobody. So each
/// tells the next what it calls, round the circle, whoever the root is: where two differ, so do two neighbours.
template <Wire W>
class Greeting {
 public:
  static std::size_t bytes(const Call<W>& call) noexcept { return 2 * opening_bytes(call); }

  /// @param memory of bytes(call), which stays
  Greeting(Call<W>& call, std::byte* memory)
      : heard_(memory + opening_bytes(call)),
        answer_(call.wire.recv(opening_memory(call, heard_), call.before(1), Lane::collective)),
        hello_(call.wire.send(write_opening(call, memory, {}), call.after(1), Lane::collective)) {}

  typename W::Ticket answer() const noexcept { return answer_; }
  typename W::Ticket hello() const noexcept { return hello_; }

  /// `length` is how long the answer was. @throws Error (disagreement)
  void check(Call<W>& call, std::size_t length) const { check_opening(call, call.before(1), heard_, length, 0); }

 private:
  std::byte* heard_;
  typename W::Ticket answer_;
  typename W::Ticket hello_;
};

}  // namespace detail

/// Binomial tree: in each step those that have it send it on, so that twice as many have it. Source: Thakur,
/// Rabenseifner and Gropp (see doubling.hpp), 4.3. @param buffer of at most Tuning::small_bytes
template <Wire W>
Routine broadcast_small(Call<W>& call, std::span<std::byte> buffer) {
  using Ticket = typename W::Ticket;
  const int size = call.size();
  const int root = call.operation.root;
  const int place = (call.rank() - root + size) % size;  // the root's is 0
  std::byte* const memory = call.scratch.at_least(opening_bytes(call) + detail::Greeting<W>::bytes(call));
  const detail::Greeting<W> greeting(call, memory + opening_bytes(call));
  const auto rank_at = [&](int at) { return (at + root) % size; };
  int reach = 1;  // ranks in the part of the tree that hangs below this one
  while (reach < size && (place & reach) == 0) {
    reach *= 2;
  }
  const std::size_t length = co_await call.wire.done(greeting.answer());
  greeting.check(call, length);
  if (place != 0) {
    const int parent = rank_at(place - reach);
    const Ticket received = call.wire.recv(opening_memory(call, memory), parent, Lane::collective);
    const std::size_t bytes = co_await call.wire.done(received);
    check_opening(call, parent, memory, bytes, buffer.size());
    kernels::copy_bytes(buffer.data(), behind_opening(memory), buffer.size());
  }
  const std::span<const std::byte> message = write_opening(call, memory, buffer);
  std::array<Ticket, 32> sent;
  std::size_t children = 0;
  for (int distance = reach / 2; distance > 0; distance /= 2) {
    if (place + distance < size) {
      sent[children++] = call.wire.send(message, rank_at(place + distance), Lane::collective);
    }
  }
  for (std::size_t child = 0; child < children; ++child) {
    co_await call.wire.done(sent[child]);
  }
  co_await call.wire.done(greeting.hello());
}

/// Chain: each rank passes on what has arrived while more arrives. Takes the time of the buffer, and of a chunk for
/// each rank but two. Source: J. Pjesivac-Grbovic et al., "Performance analysis of MPI collective operations", Cluster
/// Computing 10 (2007), "pipeline".
template <Wire W>
Routine broadcast_large(Call<W>& call, std::span<std::byte> buffer) {
  using Ticket = typename W::Ticket;
  const int root = call.operation.root;
  const bool receives = call.rank() != root;
  const bool sends = call.after(1) != root;
  const int previous = call.before(1);
  const int next = call.after(1);
  const Blocks blocks(buffer.size(), DType::u8, 1, call.place.tuning);
  const std::size_t lanes = blocks.lanes();
  const std::size_t messages = blocks.rounds() * lanes;
  const auto part = [&](std::size_t m) {
    const Extent extent = blocks.chunk(0, m / lanes, m % lanes);
    return buffer.subspan(extent.offset, extent.bytes);
  };
  const detail::Greeting<W> greeting(call, call.scratch.at_least(detail::Greeting<W>::bytes(call)));
  std::array<Ticket, most_lanes> received;
  std::array<Ticket, most_lanes> sent;
  for (std::size_t m = 0; receives && m < lanes; ++m) {
    received[m] = call.wire.recv(part(m), previous, Lane::collective);
  }
  const std::size_t bytes = co_await call.wire.done(greeting.answer());
  greeting.check(call, bytes);
  for (std::size_t m = 0; m < messages; ++m) {
    const std::size_t lane = m % lanes;
    if (receives) {
      const std::size_t length = co_await call.wire.done(received[lane]);
      check_length(call, previous, length, part(m).size());
      if (m + lanes < messages) {
        received[lane] = call.wire.recv(part(m + lanes), previous, Lane::collective);
      }
    }
    if (sends) {
      if (m >= lanes) {
        co_await call.wire.done(sent[lane]);
      }
      sent[lane] = call.wire.send(part(m), next, Lane::collective);
    }
  }
  if (sends) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      co_await call.wire.done(sent[lane]);
    }
  }
  co_await call.wire.done(greeting.hello());
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
