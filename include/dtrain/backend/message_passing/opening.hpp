#pragma once
/// @file
/// The first message between two ranks of an operation: what the sender calls, with what is small behind it.

#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "dtrain/backend/message_passing/call.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/kernels/copy.hpp"

/// Ranks that call different things find out from it, before one waits for what the other never sends. It costs a large
/// operation nothing: what follows does not wait for it.
namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Memory for an opening: every one fits, whatever the other rank calls.
template <Wire W>
std::size_t opening_bytes(const Call<W>& call) noexcept {
  const std::size_t step = 64;
  return (sizeof(Operation) + call.place.tuning.small_bytes + step - 1) / step * step;
}

inline std::byte* behind_opening(std::byte* memory) noexcept {
  return memory + sizeof(Operation);
}

/// Writes this rank's; `payload` may lie in its place already. @returns the message
inline std::span<const std::byte> write_opening(std::byte* memory, std::span<const std::byte> payload,
                                                const Operation& operation) {
  std::memcpy(memory, &operation, sizeof(Operation));
  if (payload.data() != behind_opening(memory) && !payload.empty()) {
    kernels::copy_bytes(behind_opening(memory), payload.data(), payload.size());
  }
  return {memory, sizeof(Operation) + payload.size()};
}

template <Wire W>
std::span<const std::byte> write_opening(const Call<W>& call, std::byte* memory, std::span<const std::byte> payload) {
  return write_opening(memory, payload, call.operation);
}

/// All of the memory for one, to receive it in.
template <Wire W>
std::span<std::byte> opening_memory(const Call<W>& call, std::byte* memory) noexcept {
  return {memory, opening_bytes(call)};
}

namespace detail {

/// Point to point the two ends differ in what they are called, and in nothing else.
inline bool fit(const Operation& own, const Operation& other) noexcept {
  return own.sequence != 0 ? own.agrees_with(other)
                           : other.sequence == 0 && own.count == other.count && own.dtype == other.dtype;
}

template <Wire W>
[[noreturn]] void disagree(const Call<W>& call, int peer, const std::string& peer_did) {
  const auto job_rank = [&](int rank) { return std::to_string(call.place.job_ranks[static_cast<std::size_t>(rank)]); };
  throw Error(Errc::disagreement, "as " + place_of(call.operation, call.place.channel) + ", rank " +
                                      job_rank(call.rank()) + " called " +
                                      described(call.operation, call.place.describe) + " and rank " + job_rank(peer) +
                                      " " + peer_did + "; every rank calls the same collectives in the same order");
}

template <Wire W>
[[noreturn]] void disagree_on_message(const Call<W>& call, int peer, const Operation& sent) {
  const auto job_rank = [&](int rank) { return std::to_string(call.place.job_ranks[static_cast<std::size_t>(rank)]); };
  throw Error(Errc::disagreement, "on channel '" + call.place.channel + "', rank " + job_rank(peer) + " sends " +
                                      std::to_string(sent.count) + " " + name(sent.dtype) + " and rank " +
                                      job_rank(call.rank()) + " receives " + std::to_string(call.operation.count) +
                                      " " + name(call.operation.dtype) + "; both give the same count and type");
}

}  // namespace detail

/// What a rank sends as its last message: it calls nothing any more.
inline constexpr OperationKind has_left = OperationKind::none;

/// `memory` holds `bytes` of a message from `peer`. @throws Error (disagreement) unless it calls the same operation and
/// sends `payload` bytes with it
template <Wire W>
void check_opening(const Call<W>& call, int peer, const std::byte* memory, std::size_t bytes, std::size_t payload) {
  Operation other;
  if (bytes < sizeof(Operation)) {
    detail::disagree(call, peer, "was still in the one before");
  }
  std::memcpy(&other, memory, sizeof(Operation));
  if (other.kind == has_left) {
    detail::disagree(call, peer, "has left the channel");
  }
  if (call.operation.sequence == 0 && !detail::fit(call.operation, other)) {
    detail::disagree_on_message(call, peer, other);
  }
  if (!detail::fit(call.operation, other)) {
    detail::disagree(
        call, peer,
        "called " + to_string(other) +
            (other.sequence == call.operation.sequence ? std::string() : " as " + place_of(other, call.place.channel)));
  }
  if (bytes != sizeof(Operation) + payload) {
    detail::disagree(call, peer, "sent " + std::to_string(bytes) + " bytes to begin it; do all ranks run one program?");
  }
}

/// A later message of the operation was of `bytes`. @throws Error (disagreement) unless these are as many as `expected`
template <Wire W>
void check_length(const Call<W>& call, int peer, std::size_t bytes, std::size_t expected) {
  if (bytes != expected) {
    detail::disagree(call, peer,
                     "sent " + std::to_string(bytes) + " bytes where " + std::to_string(expected) +
                         " were its part; do all ranks run one program?");
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
