#pragma once
/// @file
/// MessageKind: the first byte of a frame, which names the message in it.

#include <cstdint>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// A number never changes its meaning. Each message has its kind as `message_kind`; a Hello is encoded apart.
enum class MessageKind : std::uint8_t {
  hello = 1,
  welcome = 2,
  refused = 3,
  failure = 4,
  request = 5,
  response = 6,
  cancel = 7,
  report = 8,
  leave = 9,
  left = 10,
  accepted = 11,
  challenge = 12,
  join = 13,
  resume = 14,
  heartbeat = 15,
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
