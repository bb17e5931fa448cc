#pragma once
/// @file
/// What holds for every message that a codec of the rendezvous understood.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "dtrain/rendezvous/protocol/codec.hpp"
#include "fuzz/fuzz.hpp"

namespace fuzz {

namespace rendezvous = dtrain::rendezvous;
using rendezvous::Frame;

inline std::string text_of(const Frame& frame) {
  return {reinterpret_cast<const char*>(frame.data()), frame.size()};
}

/// What was understood is sent again: it is understood again, as the same, and is bounded as what came. A frame that is
/// cut short, or has a byte more, is nothing.
/// @param decode from a frame to an optional variant of messages
template <class Decode>
void require_round_trip(std::span<const std::byte> frame, Decode decode) {
  const auto message = decode(frame);
  if (!message) {
    return;
  }
  const Frame again = std::visit([](const auto& each) { return rendezvous::encode(each); }, *message);
  require(again.size() <= 4 * frame.size() + 64, "what was understood is not larger than what came");
  const auto second = decode(std::span<const std::byte>(again));
  require(second.has_value(), "what was understood can be sent");
  require(second->index() == message->index(), "it is the same kind of message");
  const Frame third = std::visit([](const auto& each) { return rendezvous::encode(each); }, *second);
  require(third == again, "it is the same message");
  require(!decode(std::span<const std::byte>(again).first(again.size() - 1)), "a frame cut short is nothing");
  Frame longer = again;
  longer.push_back(std::byte{0});
  require(!decode(std::span<const std::byte>(longer)), "a frame with a byte more is nothing");
}

/// Of a text that people read.
inline void require_printable(const std::string& text, std::size_t longest) {
  require(text.size() <= longest, "a text is bounded");
  for (const char byte : text) {
    const auto code = static_cast<unsigned char>(byte);
    require(code >= ' ' && code != 0x7f, "a text has no control bytes");
  }
}

}  // namespace fuzz
