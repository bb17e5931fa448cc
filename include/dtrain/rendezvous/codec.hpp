#pragma once
/// @file
/// Messages to the bytes of a frame and back.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/rendezvous/effect.hpp"
#include "dtrain/rendezvous/fields.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/request_fields.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

using Frame = std::vector<std::byte>;

namespace detail {

/// @name The kind of each message, and its fields in their order on the wire.
/// @{
inline constexpr MessageKind kind_of(const Accepted*) {
  return MessageKind::accepted;
}
inline constexpr MessageKind kind_of(const Welcome*) {
  return MessageKind::welcome;
}
inline constexpr MessageKind kind_of(const Refused*) {
  return MessageKind::refused;
}
inline constexpr MessageKind kind_of(const Failure*) {
  return MessageKind::failure;
}
inline constexpr MessageKind kind_of(const Report*) {
  return MessageKind::report;
}
inline constexpr MessageKind kind_of(const Leave*) {
  return MessageKind::leave;
}
inline constexpr MessageKind kind_of(const Left*) {
  return MessageKind::left;
}

inline constexpr int max_int = std::numeric_limits<int>::max();

/// What follows the kind, magic, protocol and version of a Hello.
template <class Fields>
void fields(Fields& of, Hello& message) {
  of.choice(message.role, Role::rank, Role::rank);
  of.nonce(message.nonce);
  of.number(message.facts.rank, std::numeric_limits<int>::min(), max_int);  // out of range: refused with a sentence
  of.number(message.world_size, std::numeric_limits<int>::min(), max_int);
  of.text(message.facts.host_id, max_name_bytes);
  of.text(message.facts.host, max_name_bytes);
  of.number(message.facts.local_rank, 0, max_int);
  of.number(message.facts.local_world_size, 0, max_int);
  of.number(message.facts.node_rank, 0, max_int);
  of.number(message.facts.node_count, 0, max_int);
  of.number(message.process);
  of.number(message.patience_ms);
}

template <class Fields>
void fields(Fields& of, Accepted& message) {
  of.nonce(message.nonce);
}

template <class Fields>
void fields(Fields& of, Welcome& message) {
  of.number(message.membership.rank, 0, max_world_size);
  of.number(message.membership.world_size, 1, max_world_size);
  of.number(message.membership.local_rank, 0, max_world_size);
  of.number(message.membership.local_world_size, 1, max_world_size);
  of.number(message.membership.node_rank, 0, max_world_size);
  of.number(message.membership.node_count, 1, max_world_size);
  of.text(message.membership.host, max_name_bytes);
  of.text(message.membership.job, max_name_bytes);
  of.number(message.membership.other_host_rank, -1, max_world_size);
  of.text(message.membership.other_host, max_name_bytes);
}

template <class Fields>
void fields(Fields& of, Refused& message) {
  of.text(message.sentence, max_sentence_bytes);
}

template <class Fields>
void fields(Fields& of, Cause& cause) {
  of.choice(cause.kind, CauseKind::lost, CauseKind::stopped);
  of.number(cause.rank, -1, max_int);
  of.text(cause.host, max_name_bytes);
  of.text(cause.text, max_sentence_bytes);
}

template <class Fields>
void fields(Fields& of, Failure& message) {
  fields(of, message.cause);
}

template <class Fields>
void fields(Fields& of, Report& message) {
  fields(of, message.cause);
}

template <class Fields>
void fields(Fields&, Leave&) {}

template <class Fields>
void fields(Fields&, Left&) {}
/// @}

template <class Message, class Any>
std::optional<Any> decode_as(FieldReader& reader) {
  Message message;
  fields(reader, message);
  return reader.finished() ? std::optional<Any>(std::move(message)) : std::nullopt;
}

}  // namespace detail

/// The frame of any message but Hello. @pre keys and values within their bounds: they would be cut
template <class Message>
Frame encode(Message message) {
  FieldWriter writer;
  const MessageKind kind = detail::kind_of(&message);
  writer.choice(kind, kind, kind);
  detail::fields(writer, message);
  return writer.take();
}

inline Frame encode(ToRank message) {
  return std::visit([](auto& each) { return encode(std::move(each)); }, message);
}

/// @param protocol another than this version's only in tests
inline Frame encode(Hello message, std::uint16_t protocol = protocol_version) {
  FieldWriter writer;
  writer.choice(MessageKind::hello, MessageKind::hello, MessageKind::hello);
  writer.number(protocol_magic);
  writer.number(protocol);
  writer.text(message.version, max_name_bytes);
  detail::fields(writer, message);
  return writer.take();
}

/// A Hello, or why it is refused; nothing if it is no Hello of any version: then there is nobody to explain it to.
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

/// What a store sent; nothing if it does not follow the protocol.
inline std::optional<ToRank> decode_to_rank(std::span<const std::byte> frame) {
  FieldReader reader(frame);
  MessageKind kind{};
  reader.choice(kind, MessageKind::hello, MessageKind::accepted);
  switch (kind) {
    case MessageKind::accepted: return detail::decode_as<Accepted, ToRank>(reader);
    case MessageKind::welcome: return detail::decode_as<Welcome, ToRank>(reader);
    case MessageKind::refused: return detail::decode_as<Refused, ToRank>(reader);
    case MessageKind::failure: return detail::decode_as<Failure, ToRank>(reader);
    case MessageKind::response: return detail::decode_as<Response, ToRank>(reader);
    case MessageKind::left: return detail::decode_as<Left, ToRank>(reader);
    default: return std::nullopt;
  }
}

/// What a rank that has joined sent; nothing if it does not follow the protocol.
inline std::optional<FromRank> decode_from_rank(std::span<const std::byte> frame) {
  FieldReader reader(frame);
  MessageKind kind{};
  reader.choice(kind, MessageKind::hello, MessageKind::accepted);
  switch (kind) {
    case MessageKind::request: return detail::decode_as<Request, FromRank>(reader);
    case MessageKind::cancel: return detail::decode_as<Cancel, FromRank>(reader);
    case MessageKind::report: return detail::decode_as<Report, FromRank>(reader);
    case MessageKind::leave: return detail::decode_as<Leave, FromRank>(reader);
    default: return std::nullopt;
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
