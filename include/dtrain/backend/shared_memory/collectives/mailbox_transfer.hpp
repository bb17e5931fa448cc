#pragma once
/// @file
/// Point-to-point transfer in shared memory: the user's messages.

#include <cstddef>
#include <cstdint>

#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/collectives/mailbox_endpoint.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A send, a recv, or both at once, which do not wait for each other.
struct MailboxTransfer {
  const std::byte* input;
  std::byte* output;
  std::uint64_t input_count;
  std::uint64_t output_count;
  MailboxEndpoint* endpoint;
  std::int32_t to;    ///< -1: no send
  std::int32_t from;  ///< -1: no recv
  DType input_dtype;
  DType output_dtype;

  void operator()(Channel& /*channel*/, const Operation& /*operation*/) const noexcept {
    MailboxEndpoint::MessageHandle sent;
    if (to >= 0) {
      sent = endpoint->send(ConstBufferView{input, input_count, input_dtype, {}}, to);
    }
    if (from >= 0) {
      const auto received = endpoint->recv(BufferView{output, output_count, output_dtype, {}}, from);
      if (!endpoint->block_until_done(received)) {
        return;
      }
      endpoint->take(received);
    }
    if (to >= 0 && endpoint->block_until_done(sent)) {
      endpoint->take(sent);
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
