#pragma once
/// @file
/// Dissemination barrier: in round k, each rank receives from the rank 2^k before it, so in the end from all.

#include <cstddef>

#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/message_passing/routine.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Source: D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization", Int. J. Parallel Program.
/// 17 (1988), the dissemination barrier.
template <Endpoint E>
Routine barrier(OperationContext<E>& context) {
  using MessageHandle = typename E::MessageHandle;
  std::byte* const memory = context.scratch.at_least(2 * header_bytes(context));
  std::byte* const received_header = memory + header_bytes(context);
  for (int distance = 1; distance < context.size(); distance *= 2) {
    const int peer = context.before(distance);
    const MessageHandle received =
        context.endpoint.recv(header_memory(context, received_header), peer, TagClass::collective);
    const MessageHandle sent =
        context.endpoint.send(write_header(context, memory, {}), context.after(distance), TagClass::collective);
    const std::size_t bytes = co_await context.endpoint.done(received);
    check_header(context, peer, received_header, bytes, 0);
    co_await context.endpoint.done(sent);
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
