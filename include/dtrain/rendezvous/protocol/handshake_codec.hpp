#pragma once
/// @file
/// Handshake codec: messages of the handshake to frames and back. StoreServer and client_handshake.hpp call it.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"
#include "dtrain/rendezvous/protocol/session_codec.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Messages that a store may send in the handshake.
using HandshakeReply = std::variant<Challenge, Accepted, Refused, Failure>;

/// @name Fields of each message in their order on the wire. A proof comes last (secret.hpp).
/// @{

/// Fields after the kind, magic, protocol and version of a Hello.
inline void fields(Serializer& of, Hello& message) {
  of.choice(message.role, ClientRole::rank, ClientRole::worker);
  of.number(message.attempt);
  of.bytes(message.nonce);
  of.flag(message.has_secret);
}

inline void fields(Serializer& of, Challenge& message) {
  of.bytes(message.nonce);
  of.flag(message.asks_secret);
}

inline void fields(Serializer& of, Origin& origin) {
  of.flag(origin.is_exact_job);
  of.flag(origin.one_starter);
  of.number(origin.process_space);
  of.number(origin.starter);
  of.number(origin.starter_began);
  of.text(origin.starter_name, max_name_bytes);
  of.text(origin.program, max_name_bytes);
  of.text(origin.build, max_name_bytes);
}

inline void fields(Serializer& of, Join& message) {
  constexpr int most = std::numeric_limits<int>::max();
  of.number(message.info.rank);  // out of range: refused with a sentence
  of.number(message.world_size);
  of.text(message.info.host_id, max_name_bytes);
  of.text(message.info.host, max_name_bytes);
  of.number(message.info.local_rank, most);
  of.number(message.info.local_world_size, most);
  of.number(message.info.node_rank, most);
  of.number(message.info.node_count, most);
  of.raw_text(message.info.settings, max_settings_bytes);
  of.text(message.job, max_name_bytes);
  fields(of, message.origin);
  of.flag(message.opens_store);
  of.number(message.process);
  of.number(message.join_timeout_ms);
  of.bytes(message.proof);
}

inline void fields(Serializer& of, Accepted& message) {
  of.number(message.heartbeat_ms);
  of.number(message.liveness_ms);
  of.bytes(message.proof);
}

inline void fields(Serializer& of, Refused& message) {
  of.text(message.sentence, max_sentence_bytes);
  of.flag(message.other_job);
}
/// @}

namespace detail {

/// The first fields of a Hello, which every version keeps.
inline void version_fields(Serializer& of, std::uint16_t& protocol, std::string& version) {
  MessageKind kind = MessageKind::hello;
  std::uint32_t magic = protocol_magic;
  of.choice(kind, MessageKind::hello, MessageKind::hello);
  of.number(magic, protocol_magic, protocol_magic);
  of.number(protocol);
  of.text(version, max_name_bytes);
}

}  // namespace detail

/// @param protocol another version only in tests
inline Frame encode(Hello message, std::uint16_t protocol = protocol_version) {
  Serializer writer;
  detail::version_fields(writer, protocol, message.version);
  fields(writer, message);
  return writer.take();
}

/// A Hello, or the refusal of another version's Hello; nullopt for other bytes, whose sender could not read a refusal.
/// @param version the store's version of dtrain
inline std::optional<std::variant<Hello, Refused>> decode_hello(std::span<const std::byte> frame,
                                                                const std::string& version) {
  Serializer reader(frame);
  std::uint16_t protocol = 0;
  Hello hello;
  detail::version_fields(reader, protocol, hello.version);
  if (!reader.ok()) {
    return std::nullopt;
  }
  if (protocol != protocol_version || hello.version != version) {
    return Refused{format_text(
        "this process runs dtrain {} (protocol {}), the job dtrain {} (protocol {}); run one build on all ranks",
        {hello.version, protocol, version, protocol_version})};
  }
  fields(reader, hello);
  if (!reader.finished()) {
    return std::nullopt;
  }
  return hello;
}

/// A Join; nullopt if the frame is another, or does not follow the protocol.
inline std::optional<Join> decode_join(std::span<const std::byte> frame) {
  Serializer reader(frame);
  MessageKind kind{};
  std::optional<Join> join(std::in_place);
  reader.choice(kind, MessageKind::join, MessageKind::join);
  fields(reader, *join);
  if (!reader.finished()) {
    join.reset();
  }
  return join;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
