#pragma once
/// @file
/// The preconditions of collectives, checked at the call, in one sentence each, for every backend.

#include <functional>
#include <string>

#include "dtrain/core/buffer_view.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::backend {

namespace detail {

inline std::string amount(const ConstBufferView& view) {
  return std::to_string(view.count) + " " + name(view.dtype);
}

[[noreturn]] inline void refuse(const std::string& sentence) {
  throw Error(Errc::invalid_argument, sentence);
}

inline void check_memory(const char* operation, const ConstBufferView& view) {
  if (view.count != 0 && view.data == nullptr) {
    refuse(std::string(operation) + " of " + amount(view) + " was given a null address");
  }
}

inline void check_apart(const char* operation, const ConstBufferView& input, const ConstBufferView& output) {
  const std::less<const std::byte*> before;
  if (before(input.data, output.data + output.bytes()) && before(output.data, input.data + input.bytes())) {
    refuse("the input and output of " + std::string(operation) + " overlap; give it disjoint memory");
  }
}

/// `whole` has one block of the size of `part` for each rank.
inline void check_blocks(const char* operation, const ConstBufferView& whole, const char* whole_is,
                         const ConstBufferView& part, const char* part_is, int size) {
  if (whole.dtype != part.dtype || whole.count % static_cast<std::size_t>(size) != 0 ||
      whole.count / static_cast<std::size_t>(size) != part.count) {
    refuse(std::string(operation) + " on " + std::to_string(size) + " ranks with an " + whole_is + " of " +
           amount(whole) + " and an " + part_is + " of " + amount(part) + "; the " + whole_is +
           " has as many for each rank as the " + part_is + ", of the same type");
  }
  check_memory(operation, whole);
  check_memory(operation, part);
  check_apart(operation, whole, part);
}

}  // namespace detail

/// @throws Error (invalid_argument) unless both are alike, and the same memory or disjoint.
inline void check_all_reduce(const ConstBufferView& input, const ConstBufferView& output) {
  if (input.count != output.count || input.dtype != output.dtype) {
    detail::refuse("all_reduce of " + detail::amount(input) + " into " + detail::amount(output) +
                   "; both buffers have the same length and type");
  }
  detail::check_memory("all_reduce", input);
  detail::check_memory("all_reduce", output);
  if (input.data != output.data) {
    detail::check_apart("all_reduce", input, output);
  }
}

/// @throws Error (invalid_argument) unless `input` is `size` blocks as long as `output`.
inline void check_reduce_scatter(const ConstBufferView& input, const ConstBufferView& output, int size) {
  detail::check_blocks("reduce_scatter", input, "input", output, "output", size);
}

/// @throws Error (invalid_argument) unless `output` is `size` blocks as long as `input`.
inline void check_all_gather(const ConstBufferView& input, const ConstBufferView& output, int size) {
  detail::check_blocks("all_gather", output, "output", input, "input", size);
}

/// @throws Error (invalid_argument) for a root that is no rank of the channel, and memory that is not there.
inline void check_broadcast(const ConstBufferView& buffer, int root, int size) {
  if (root < 0 || root >= size) {
    detail::refuse("broadcast from rank " + std::to_string(root) + " among " + std::to_string(size) +
                   " ranks; ranks begin at 0");
  }
  detail::check_memory("broadcast", buffer);
}

/// @throws Error (invalid_argument) for a peer that is no other rank of the channel, and memory that is not there.
inline void check_message(const char* operation, const ConstBufferView& buffer, int peer, int rank, int size) {
  if (peer < 0 || peer >= size || peer == rank) {
    detail::refuse(std::string(operation) + " between rank " + std::to_string(rank) + " and rank " +
                   std::to_string(peer) + " among " + std::to_string(size) +
                   " ranks; a peer is another rank, counted from 0");
  }
  detail::check_memory(operation, buffer);
}

/// @throws Error (invalid_argument) as check_message, and for memory that overlaps.
inline void check_send_recv(const ConstBufferView& input, int to, const ConstBufferView& output, int from, int rank,
                            int size) {
  check_message("send_recv", input, to, rank, size);
  check_message("send_recv", output, from, rank, size);
  detail::check_apart("send_recv", input, output);
}

}  // namespace DTRAIN_NAMESPACE::backend
