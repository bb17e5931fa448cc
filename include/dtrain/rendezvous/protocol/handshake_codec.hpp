#pragma once
/// @file
/// Handshake codec: messages of the handshake to frames and back.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "dtrain/rendezvous/protocol/session_codec.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Messages that a rank may send after its Hello.
using HandshakeRequest = std::variant<Join, Resume>;

/// Messages that a store may send in the handshake.
using HandshakeReply = std::variant<Challenge, Accepted, Refused, Failure>;

/// @param protocol another version only in tests
inline Frame encode(Hello message, std::uint16_t protocol = protocol_version) {
  FieldWriter writer;
  writer.choice(MessageKind::hello, MessageKind::hello, MessageKind::hello);
  writer.number(protocol_magic);
  writer.number(protocol);
  writer.text(message.version, max_name_bytes);
  detail::fields(writer, message);
  return writer.take();
}

/// A Hello, or the refusal of another version's Hello; nothing for other bytes, whose sender could not read a refusal.
/// @param version the store's version of dtrain
inline std::optional<std::variant<Hello, Refused>> decode_hello(std::span<const std::byte> frame,
                                                                const std::string& version) {
  FieldReader reader(frame);
  MessageKind kind{};
  std::uint32_t magic = 0;
  std::uint16_t protocol = 0;
  Hello hello;
  reader.choice(kind, MessageKind::hello, MessageKind::hello);
  reader.number(magic);
  reader.number(protocol);
  reader.text(hello.version, max_name_bytes);
  if (!reader.ok() || magic != protocol_magic) {
    return std::nullopt;
  }
  if (protocol != protocol_version || hello.version != version) {
    return Refused{"this process runs dtrain " + hello.version + " (protocol " + std::to_string(protocol) +
                   "), the job dtrain " + version + " (protocol " + std::to_string(protocol_version) +
                   "); run one build on all ranks"};
  }
  detail::fields(reader, hello);
  if (!reader.finished()) {
    return std::nullopt;
  }
  return hello;
}

/// Decodes a rank's message after its Hello; nothing if the frame does not follow the protocol.
inline std::optional<HandshakeRequest> decode_handshake_request(std::span<const std::byte> frame) {
  FieldReader reader(frame);
  MessageKind kind{};
  reader.choice(kind, MessageKind::hello, MessageKind::heartbeat);
  switch (kind) {
    case MessageKind::join: return detail::decode_as<Join, HandshakeRequest>(reader);
    case MessageKind::resume: return detail::decode_as<Resume, HandshakeRequest>(reader);
    default: return std::nullopt;
  }
}

/// Decodes a store's message in the handshake; nothing if the frame does not follow the protocol.
inline std::optional<HandshakeReply> decode_handshake_reply(std::span<const std::byte> frame) {
  FieldReader reader(frame);
  MessageKind kind{};
  reader.choice(kind, MessageKind::hello, MessageKind::heartbeat);
  switch (kind) {
    case MessageKind::challenge: return detail::decode_as<Challenge, HandshakeReply>(reader);
    case MessageKind::accepted: return detail::decode_as<Accepted, HandshakeReply>(reader);
    case MessageKind::refused: return detail::decode_as<Refused, HandshakeReply>(reader);
    case MessageKind::failure: return detail::decode_as<Failure, HandshakeReply>(reader);
    default: return std::nullopt;
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
