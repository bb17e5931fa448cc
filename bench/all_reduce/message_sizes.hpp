#pragma once
/// @file
/// What is measured over messages: the same sizes and requests over MPI and over Gloo.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/all_reduce/goals.hpp"
#include "bench/all_reduce/measure.hpp"
#include "bench/all_reduce/protocol.hpp"
#include "bench/options.hpp"

namespace bench {

/// Those that were asked for, else from one element to where the wire alone counts. In bytes.
inline std::vector<std::uint64_t> message_sizes(const Options& options) {
  if (!options.bytes.empty()) {
    return {options.bytes.begin(), options.bytes.end()};
  }
  return {4, 1 * kibi, 16 * kibi, 256 * kibi, 1 * mebi, 4 * mebi, 16 * mebi, 64 * mebi};
}

/// So many buffers in turns that small ones do not stay in a cache.
inline int message_buffers(std::uint64_t bytes) {
  return static_cast<int>(std::clamp<std::uint64_t>(64 * mebi / bytes, 2, 32));
}

/// The memory that a rank needs for any of the sizes, in bytes.
inline std::size_t message_memory(const std::vector<std::uint64_t>& sizes) {
  std::size_t most = 0;
  for (const std::uint64_t bytes : sizes) {
    most = std::max(most, buffer_stride(bytes) * static_cast<std::size_t>(message_buffers(bytes)));
  }
  return most;
}

/// One sample behind one warm-up: ways take turns.
inline Request message_request(std::uint64_t bytes) {
  Request request;
  request.bytes = bytes;
  request.buffers = message_buffers(bytes);
  request.memory = "foreign";
  request.warm_ups = 1;
  request.samples = 1;
  return request;
}

}  // namespace bench
