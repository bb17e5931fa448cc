#pragma once
/// @file
/// OutgoingFrame: a frame to send, which may share bytes with other frames.

#include <cstddef>
#include <utility>
#include <vector>

#include "dtrain/net/framing/frame.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

using Frame = std::vector<std::byte>;

/// Frame to send: its own bytes, and bytes that it shares with other frames.
struct OutgoingFrame {
  OutgoingFrame(Frame bytes, std::vector<net::SharedBytes> shared = {})  // NOLINT: most frames share nothing
      : own(std::move(bytes)), parts(std::move(shared)) {
    for (const net::SharedBytes& part : parts) {
      shared_bytes += part.bytes->size();
    }
  }

  std::size_t size() const noexcept { return own.size() + shared_bytes; }

  Frame own;
  std::vector<net::SharedBytes> parts;
  std::size_t shared_bytes = 0;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
