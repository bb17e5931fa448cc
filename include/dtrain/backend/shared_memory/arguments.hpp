#pragma once
/// @file
/// What a caller of a shared-memory collective can know to be wrong, found at the call.

#include <cstddef>
#include <functional>
#include <string>

#include "dtrain/core/buffer_view.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// @throws Error (unsupported) for memory of a device, (invalid_argument) for none at all
inline void check_memory(ConstBufferView buffer) {
  if (buffer.device.kind != DeviceKind::host) {
    throw Error(Errc::unsupported, "backend::SharedMemory takes host memory, not memory of " +
                                       to_string(buffer.device) + "; use backend::Nccl for it");
  }
  if (buffer.count != 0 && buffer.data == nullptr) {
    throw Error(Errc::invalid_argument,
                "a collective of " + std::to_string(buffer.count) + " elements was given a null address");
  }
}

/// @throws Error (invalid_argument)
inline void check_peer(const char* what, int rank, int ranks) {
  if (rank < 0 || rank >= ranks) {
    throw Error(Errc::invalid_argument, std::string(what) + " rank " + std::to_string(rank) + " on a channel of " +
                                            std::to_string(ranks) + " ranks; ranks begin at 0");
  }
}

/// Whether two runs of memory have a byte in common.
inline bool overlap(ConstBufferView a, ConstBufferView b) noexcept {
  const std::less<const std::byte*> before;
  return before(a.data, b.data + b.bytes()) && before(b.data, a.data + a.bytes());
}

/// The input and the output of `what`, where the input has `input_blocks` blocks of a rank's for every
/// `output_blocks` of the output. In place means: where they overlap, the smaller one is block `rank` of the larger.
/// @throws Error (invalid_argument)
inline void check_pair(const char* what, ConstBufferView input, BufferView output, std::size_t input_blocks,
                       std::size_t output_blocks, int rank) {
  check_memory(input);
  check_memory(output);
  if (input.dtype != output.dtype || input.count * output_blocks != output.count * input_blocks) {
    const auto blocks = [](std::size_t count) { return count == 1 ? "" : ", " + std::to_string(count) + " blocks"; };
    throw Error(Errc::invalid_argument,
                std::string(what) + " of " + std::to_string(input.count) + " " + name(input.dtype) + " into " +
                    std::to_string(output.count) + " " + name(output.dtype) +
                    "; both buffers have the same type and, in blocks of one rank, the same length (input" +
                    blocks(input_blocks) + "; output" + blocks(output_blocks) + ")");
  }
  const std::size_t before_input = output_blocks == 1 ? 0 : static_cast<std::size_t>(rank) * input.bytes();
  const std::size_t before_output = input_blocks == 1 ? 0 : static_cast<std::size_t>(rank) * output.bytes();
  if (overlap(input, output) && input.data + before_output != output.data + before_input) {
    throw Error(Errc::invalid_argument,
                std::string("the input and output of ") + what +
                    " overlap; work in place (the same address, or this rank's block of the longer one) or give "
                    "disjoint memory");
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
