#pragma once
/// @file
/// Direct exchange for small reductions and all-gathers of few ranks: every rank sends once to every other.

#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

inline constexpr int max_direct_exchange_ranks = 16;

/// Each rank receives `bytes` from every other, and reduces them in rank order or concatenates them.
struct DirectExchange {
  const std::byte* input;  ///< if `blocks`, one block for each rank; else one block for all
  std::byte* output;
  std::size_t bytes;  ///< of a block
  std::size_t count;  ///< of a block, in elements
  bool blocks;        ///< each rank receives its own block of the input
  bool reduces;
};

template <Endpoint E>
Routine direct_exchange(OperationContext<E>& context, const DirectExchange& work) {
  using MessageHandle = typename E::MessageHandle;
  const int size = context.size();
  const int self = context.rank();
  const std::size_t header = header_bytes(context);
  std::byte* const memory = context.scratch.at_least(2 * static_cast<std::size_t>(size) * header);
  const auto sent_memory = [&](int peer) {
    return memory + static_cast<std::size_t>(work.blocks ? peer : self) * header;
  };
  const auto received_header = [&](int peer) { return memory + static_cast<std::size_t>(size + peer) * header; };
  const auto block_for = [&](int peer) {
    const std::size_t offset = work.blocks ? static_cast<std::size_t>(peer) * work.bytes : 0;
    return std::span(work.input + offset, work.bytes);
  };
  std::array<MessageHandle, max_direct_exchange_ranks> sent;
  std::array<MessageHandle, max_direct_exchange_ranks> received;
  for (int distance = 1; distance < size; ++distance) {
    const int peer = context.before(distance);
    received[static_cast<std::size_t>(peer)] =
        context.endpoint.recv(header_memory(context, received_header(peer)), peer, TagClass::collective);
  }
  std::span<const std::byte> message;
  for (int distance = 1; distance < size; ++distance) {
    const int peer = context.after(distance);
    if (work.blocks || distance == 1) {
      message = write_header(context, sent_memory(peer), block_for(peer));
    }
    sent[static_cast<std::size_t>(peer)] = context.endpoint.send(message, peer, TagClass::collective);
  }
  for (int peer = 0; peer < size; ++peer) {
    if (peer != self) {
      const std::size_t bytes = co_await context.endpoint.done(received[static_cast<std::size_t>(peer)]);
      check_header(context, peer, received_header(peer), bytes, work.bytes);
    }
  }
  const auto block_of = [&](int peer) {
    return peer == self ? block_for(self).data() : inline_payload(received_header(peer));
  };
  if (work.reduces) {
    std::array<const std::byte*, max_direct_exchange_ranks> sources{};
    for (int peer = 0; peer < size; ++peer) {
      sources[static_cast<std::size_t>(peer)] = block_of(peer);
    }
    const std::array<std::byte*, 1> targets{work.output};
    kernels::Reduction::of(context.operation.dtype, context.operation.op)(
        std::span(sources).first(static_cast<std::size_t>(size)), targets, work.count);
  } else {
    for (int peer = 0; peer < size; ++peer) {
      std::byte* const target = work.output + static_cast<std::size_t>(peer) * work.bytes;
      if (target != block_of(peer)) {
        kernels::copy_bytes(target, block_of(peer), work.bytes);
      }
    }
  }
  for (int peer = 0; peer < size; ++peer) {
    if (peer != self) {
      co_await context.endpoint.done(sent[static_cast<std::size_t>(peer)]);
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
