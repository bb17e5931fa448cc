#pragma once
/// @file
/// Algorithm of point-to-point messages, the user's or those within another algorithm: send, recv, or both at once.
/// exchange_blocks.hpp of this folder and the Communicator in message_passing/ call it.

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// `to` = -1: no send; `from` = -1: no recv. `sent` is the descriptor of `input`; the context's operation is the
/// descriptor that the sender must give for `output`.
struct PointToPoint {
  std::span<const std::byte> input;
  std::span<std::byte> output;
  int to;
  int from;
  Operation sent;
  TagClass tag_class = TagClass::direct;
  std::byte* headers = nullptr;  ///< memory for two; null: the scratch
};

/// A short message travels in the header. A longer one follows the header in chunks, two of which are in flight in each
/// direction. A rank posts a recv before it waits for a chunk, so ranks cannot deadlock in a ring.
template <Endpoint E>
Routine point_to_point(OperationContext<E>& context, const PointToPoint& work) {
  using MessageHandle = typename E::MessageHandle;
  const std::size_t small = context.channel.tuning.small_bytes;
  const std::size_t max_bytes = context.channel.tuning.point_to_point_chunk_bytes;
  const auto chunks = [&](std::size_t bytes) { return bytes <= small ? 0 : (bytes + max_bytes - 1) / max_bytes; };
  const std::size_t sends = work.to < 0 ? 0 : chunks(work.input.size());
  const std::size_t receives = work.from < 0 ? 0 : chunks(work.output.size());
  std::byte* const memory =
      work.headers != nullptr ? work.headers : context.scratch.at_least(2 * header_bytes(context));
  std::byte* const received_header = memory + header_bytes(context);
  std::array<MessageHandle, 2> sent;
  std::array<MessageHandle, 2> received;
  const auto start = [&](std::size_t chunk) {
    const std::size_t begin = chunk * max_bytes;
    if (chunk < receives) {
      const std::span<std::byte> bytes_of_chunk =
          work.output.subspan(begin, std::min(max_bytes, work.output.size() - begin));
      received[chunk % 2] = context.endpoint.recv(bytes_of_chunk, work.from, work.tag_class);
    }
    if (chunk < sends) {
      const std::span<const std::byte> bytes_of_chunk =
          work.input.subspan(begin, std::min(max_bytes, work.input.size() - begin));
      sent[chunk % 2] = context.endpoint.send(bytes_of_chunk, work.to, work.tag_class);
    }
  };
  MessageHandle header_sent;
  MessageHandle header_received;
  if (work.from >= 0) {
    header_received = context.endpoint.recv(header_memory(context, received_header), work.from, work.tag_class);
  }
  if (work.to >= 0) {
    const std::span<const std::byte> payload = work.input.first(sends == 0 ? work.input.size() : 0);
    header_sent = context.endpoint.send(write_header(memory, payload, work.sent), work.to, work.tag_class);
  }
  start(0);
  if (work.from >= 0) {
    const std::size_t payload = receives == 0 ? work.output.size() : 0;
    const std::size_t bytes = co_await context.endpoint.done(header_received);
    check_header(context, work.from, received_header, bytes, payload);
    if (payload > 0) {
      kernels::copy_bytes(work.output.data(), inline_payload(received_header), payload);
    }
  }
  for (std::size_t chunk = 0; chunk < std::max(sends, receives); ++chunk) {
    start(chunk + 1);
    if (chunk < receives) {
      const std::size_t bytes = co_await context.endpoint.done(received[chunk % 2]);
      check_length(context, work.from, bytes, std::min(max_bytes, work.output.size() - chunk * max_bytes));
    }
    if (chunk < sends) {
      co_await context.endpoint.done(sent[chunk % 2]);
    }
  }
  if (work.to >= 0) {
    co_await context.endpoint.done(header_sent);
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
