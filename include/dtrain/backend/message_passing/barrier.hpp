#pragma once
/// @file
/// Barrier: in round k a rank hears from the one 2^k before it, hence in the end from all.

#include <cstddef>

#include "dtrain/backend/message_passing/call.hpp"
#include "dtrain/backend/message_passing/opening.hpp"
#include "dtrain/backend/message_passing/routine.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Source: D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization", Int. J. Parallel Program.
/// 17 (1988), the dissemination barrier.
template <Wire W>
Routine barrier(Call<W>& call) {
  using Ticket = typename W::Ticket;
  std::byte* const memory = call.scratch.at_least(2 * opening_bytes(call));
  std::byte* const heard = memory + opening_bytes(call);
  for (int distance = 1; distance < call.size(); distance *= 2) {
    const int peer = call.before(distance);
    const Ticket received = call.wire.recv(opening_memory(call, heard), peer, Lane::collective);
    const Ticket sent = call.wire.send(write_opening(call, memory, {}), call.after(distance), Lane::collective);
    const std::size_t bytes = co_await call.wire.done(received);
    check_opening(call, peer, heard, bytes, 0);
    co_await call.wire.done(sent);
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
