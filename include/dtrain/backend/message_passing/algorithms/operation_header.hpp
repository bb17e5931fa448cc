#pragma once
/// @file
/// Operation header: an operation's first message to a peer, with its descriptor and a small payload.

#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/kernels/copy.hpp"

/// Ranks with different operations detect it here, before one waits for a message that the other never sends. Large
/// operations pay no latency: their later messages do not wait for the header.
namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Memory for any header, whatever operation the other rank calls.
template <Endpoint E>
std::size_t header_bytes(const OperationContext<E>& context) noexcept {
  const std::size_t step = 64;
  return (sizeof(Operation) + context.channel.tuning.small_bytes + step - 1) / step * step;
}

inline std::byte* inline_payload(std::byte* memory) noexcept {
  return memory + sizeof(Operation);
}

/// Writes this rank's header; `payload` may be in place already. @returns the message
inline std::span<const std::byte> write_header(std::byte* memory, std::span<const std::byte> payload,
                                               const Operation& operation) {
  std::memcpy(memory, &operation, sizeof(Operation));
  if (payload.data() != inline_payload(memory) && !payload.empty()) {
    kernels::copy_bytes(inline_payload(memory), payload.data(), payload.size());
  }
  return {memory, sizeof(Operation) + payload.size()};
}

template <Endpoint E>
std::span<const std::byte> write_header(const OperationContext<E>& context, std::byte* memory,
                                        std::span<const std::byte> payload) {
  return write_header(memory, payload, context.operation);
}

/// All memory of a header, for receiving.
template <Endpoint E>
std::span<std::byte> header_memory(const OperationContext<E>& context, std::byte* memory) noexcept {
  return {memory, header_bytes(context)};
}

namespace detail {

/// Whether two descriptors match: point to point by count and dtype alone, because one end sends and the other
/// receives.
inline bool fit(const Operation& own, const Operation& other) noexcept {
  return own.sequence != 0 ? own.agrees_with(other)
                           : other.sequence == 0 && own.count == other.count && own.dtype == other.dtype;
}

template <Endpoint E>
[[noreturn]] void disagree(const OperationContext<E>& context, int peer, const std::string& peer_action) {
  const auto job_rank = [&](int rank) {
    return std::to_string(context.channel.job_ranks[static_cast<std::size_t>(rank)]);
  };
  throw Error(Errc::disagreement,
              "as " + position_of(context.operation, context.channel.name) + ", rank " + job_rank(context.rank()) +
                  " called " + described(context.operation, context.channel.describe) + " and rank " + job_rank(peer) +
                  " " + peer_action + "; every rank calls the same collectives in the same order");
}

template <Endpoint E>
[[noreturn]] void disagree_on_message(const OperationContext<E>& context, int peer, const Operation& sent) {
  const auto job_rank = [&](int rank) {
    return std::to_string(context.channel.job_ranks[static_cast<std::size_t>(rank)]);
  };
  throw Error(Errc::disagreement, "on channel '" + context.channel.name + "', rank " + job_rank(peer) + " sends " +
                                      std::to_string(sent.count) + " " + name(sent.dtype) + " and rank " +
                                      job_rank(context.rank()) + " receives " +
                                      std::to_string(context.operation.count) + " " + name(context.operation.dtype) +
                                      "; both give the same count and type");
}

}  // namespace detail

/// Kind in a rank's last message, sent when it has left the channel.
inline constexpr OperationKind has_left = OperationKind::none;

/// Checks a received header: `memory` holds `bytes` of a message from `peer`.
/// @throws Error (disagreement) unless `peer` calls the same operation and sends `payload` bytes in the header
template <Endpoint E>
void check_header(const OperationContext<E>& context, int peer, const std::byte* memory, std::size_t bytes,
                  std::size_t payload) {
  Operation other;
  if (bytes < sizeof(Operation)) {
    detail::disagree(context, peer, "was still in the one before");
  }
  std::memcpy(&other, memory, sizeof(Operation));
  if (other.kind == has_left) {
    detail::disagree(context, peer, "has left the channel");
  }
  if (context.operation.sequence == 0 && !detail::fit(context.operation, other)) {
    detail::disagree_on_message(context, peer, other);
  }
  if (!detail::fit(context.operation, other)) {
    detail::disagree(
        context, peer,
        "called " + to_string(other) +
            (other.sequence == context.operation.sequence ? std::string()
                                                          : " as " + position_of(other, context.channel.name)));
  }
  if (bytes != sizeof(Operation) + payload) {
    detail::disagree(context, peer,
                     "sent " + std::to_string(bytes) + " bytes to begin it; do all ranks run one program?");
  }
}

/// Checks the length of a later message. @throws Error (disagreement) unless `bytes` equals `expected`
template <Endpoint E>
void check_length(const OperationContext<E>& context, int peer, std::size_t bytes, std::size_t expected) {
  if (bytes != expected) {
    detail::disagree(context, peer,
                     "sent " + std::to_string(bytes) + " bytes where " + std::to_string(expected) +
                         " were its part; do all ranks run one program?");
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
