#pragma once
/// @file
/// Operation header: an operation's first message to a peer, with the descriptor that both compare and a small payload.
/// The barrier, made of headers.

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/kernels/copy.hpp"

/// Ranks detect by headers that they call different operations, before one waits for a message that the other never
/// sends. Large operations pay no latency: their later messages do not wait for the header.
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
int job_rank(const OperationContext<E>& context, int rank) {
  return context.channel.job_ranks[static_cast<std::size_t>(rank)];
}

template <Endpoint E>
DTRAIN_NOT_INLINED std::string difference_from(const OperationContext<E>& context, int peer,
                                               std::string_view peer_action) {
  const ChannelInfo& channel = context.channel;
  return unequal_calls(position_of(context.operation, channel.name), job_rank(context, context.rank()),
                       described(context.operation, channel.describe), job_rank(context, peer), peer_action);
}

template <Endpoint E>
[[noreturn]] void disagree(const OperationContext<E>& context, int peer, std::string_view peer_action) {
  throw Error(Errc::disagreement, difference_from(context, peer, peer_action));
}

template <Endpoint E>
[[noreturn]] DTRAIN_NOT_INLINED void disagree_on_message(const OperationContext<E>& context, int peer,
                                                         const Operation& sent) {
  const Operation& received = context.operation;
  const std::string place = received.sequence == 0
                                ? position_of(received, context.channel.name)
                                : "in " + described_on(context.channel.name, received, context.channel.describe);
  throw Error(Errc::disagreement, unequal_message(place, {job_rank(context, peer), sent.count, sent.dtype},
                                                  {job_rank(context, context.rank()), received.count, received.dtype}));
}

template <Endpoint E>
[[noreturn]] DTRAIN_NOT_INLINED void disagree_on_length(const OperationContext<E>& context, int peer, std::size_t bytes,
                                                        std::size_t expected) {
  disagree(context, peer,
           format_text("sent {} bytes where {} were its part; do all ranks run one program?", {bytes, expected}));
}

}  // namespace detail

/// Kind in a rank's last message, sent when it has left the channel.
inline constexpr OperationKind has_left = OperationKind::none;

/// Checks a received header: `memory` holds `bytes` of a message from `peer`.
/// @throws PeerHasLeft; Error (disagreement) unless `peer` calls the same operation and sends `payload` bytes in the
/// header
template <Endpoint E>
DTRAIN_NOT_INLINED void check_header(const OperationContext<E>& context, int peer, const std::byte* memory,
                                     std::size_t bytes, std::size_t payload) {
  Operation other;
  if (bytes < sizeof(Operation)) {
    detail::disagree(context, peer, "was still in the one before");
  }
  std::memcpy(&other, memory, sizeof(Operation));
  if (other.kind == has_left) {
    throw PeerHasLeft(detail::difference_from(context, peer, "has left the channel"));
  }
  Operation counted = context.operation;
  counted.count = has_unequal_blocks(other.kind) ? other.count : counted.count;
  const bool differs_in_block = counted.agrees_with(other);
  if ((context.operation.sequence == 0 || differs_in_block) && !detail::fit(context.operation, other)) {
    detail::disagree_on_message(context, peer, other);
  }
  if (!detail::fit(context.operation, other)) {
    const bool same_position = other.sequence == context.operation.sequence;
    const std::string called = "called " + to_string(other);
    detail::disagree(context, peer,
                     same_position ? called : called + " as " + position_of(other, context.channel.name));
  }
  if (bytes != sizeof(Operation) + payload) {
    detail::disagree(context, peer, format_text("sent {} bytes to begin it; do all ranks run one program?", {bytes}));
  }
}

/// Checks the length of a later message. @throws Error (disagreement) unless `bytes` equals `expected`
template <Endpoint E>
void check_length(const OperationContext<E>& context, int peer, std::size_t bytes, std::size_t expected) {
  if (bytes != expected) {
    detail::disagree_on_length(context, peer, bytes, expected);
  }
}

/// Every rank sends its header to the next rank, modulo size, whatever the root. If any two ranks differ, two
/// neighbours differ and detect it. Otherwise ranks with different roots would wait for messages that no rank sends,
/// because the root determines all other messages.
template <Endpoint E>
class HeaderExchange {
 public:
  static std::size_t bytes(const OperationContext<E>& context) noexcept { return 2 * header_bytes(context); }

  /// @param memory bytes(context) long; outlives the messages
  HeaderExchange(OperationContext<E>& context, std::byte* memory)
      : received_header_(memory + header_bytes(context)),
        header_received_(
            context.endpoint.recv(header_memory(context, received_header_), context.before(1), TagClass::collective)),
        header_sent_(context.endpoint.send(write_header(context, memory, {}), context.after(1), TagClass::collective)) {
  }

  typename E::MessageHandle header_received() const noexcept { return header_received_; }
  typename E::MessageHandle header_sent() const noexcept { return header_sent_; }

  /// `length` is the length of the received header. @throws Error (disagreement)
  void check(OperationContext<E>& context, std::size_t length) const {
    check_header(context, context.before(1), received_header_, length, 0);
  }

 private:
  std::byte* received_header_;
  typename E::MessageHandle header_received_;
  typename E::MessageHandle header_sent_;
};

/// A header's memory, and the bytes of its payload, which is in place.
struct HeaderMessage {
  std::byte* memory;
  std::size_t payload = 0;
};

/// Sends `own` to rank `to`, and receives a header with the payload of `other` from rank `from`; -1: none.
/// @throws as check_header
template <Endpoint E>
Routine exchange_headers(OperationContext<E>& context, int to, HeaderMessage own, int from, HeaderMessage other) {
  typename E::MessageHandle sent;
  typename E::MessageHandle received;
  if (from >= 0) {
    received = context.endpoint.recv(header_memory(context, other.memory), from, TagClass::collective);
  }
  if (to >= 0) {
    sent = context.endpoint.send(write_header(context, own.memory, {inline_payload(own.memory), own.payload}), to,
                                 TagClass::collective);
  }
  if (from >= 0) {
    const std::size_t bytes = co_await context.endpoint.done(received);
    check_header(context, from, other.memory, bytes, other.payload);
  }
  if (to >= 0) {
    co_await context.endpoint.done(sent);
  }
}

/// Dissemination barrier: in round k, each rank receives from the rank 2^k before it, in the end indirectly from all
/// ranks. Source: D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization", Int. J. Parallel
/// Program. 17 (1988).
template <Endpoint E>
Routine barrier(OperationContext<E>& context) {
  std::byte* const memory = context.scratch.at_least(2 * header_bytes(context));
  const HeaderMessage own{memory};
  const HeaderMessage other{memory + header_bytes(context)};
  for (int distance = 1; distance < context.size(); distance *= 2) {
    Routine round = exchange_headers(context, context.after(distance), own, context.before(distance), other);
    co_await round;
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
