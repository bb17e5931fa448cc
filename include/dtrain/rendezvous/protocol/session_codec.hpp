#pragma once
/// @file
/// Session codec: messages of a session to frames and back.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/rendezvous/protocol/fields.hpp"
#include "dtrain/rendezvous/protocol/handshake_fields.hpp"
#include "dtrain/rendezvous/protocol/limits.hpp"
#include "dtrain/rendezvous/protocol/request_fields.hpp"
#include "dtrain/rendezvous/session/retransmit_queue.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// @name The kind of each message, and its fields in their order on the wire.
/// @{
inline constexpr MessageKind kind_of(const Heartbeat*) {
  return MessageKind::heartbeat;
}
inline constexpr MessageKind kind_of(const Welcome*) {
  return MessageKind::welcome;
}
inline constexpr MessageKind kind_of(const Failure*) {
  return MessageKind::failure;
}
inline constexpr MessageKind kind_of(const FailureReport*) {
  return MessageKind::report;
}
inline constexpr MessageKind kind_of(const Leave*) {
  return MessageKind::leave;
}
inline constexpr MessageKind kind_of(const Left*) {
  return MessageKind::left;
}

template <class Fields>
void fields(Fields& of, Heartbeat& message) {
  of.number(message.received);
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
void fields(Fields& of, FailureReport& message) {
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
  std::optional<Any> decoded;
  if (reader.finished()) {
    decoded.emplace(std::move(message));
  }
  return decoded;
}

}  // namespace detail

/// Encodes a message into `writer`, which owns the returned bytes and is cleared first.
template <class Message>
std::span<const std::byte> encode(Message message, FieldWriter& writer) {
  writer.clear();
  const MessageKind kind = detail::kind_of(&message);
  writer.choice(kind, kind, kind);
  detail::fields(writer, message);
  return writer.view();
}

/// The frame of a message. @pre keys and values are within their bounds; longer ones are cut
template <class Message>
Frame encode(Message message) {
  FieldWriter writer;
  static_cast<void>(encode(std::move(message), writer));
  return writer.take();
}

/// The frame of the same Response, sharing its long values instead of copying them.
inline OutgoingFrame encode(ValueResponse message) {
  FieldWriter writer;
  static_cast<void>(encode(std::move(message), writer));
  return {writer.take(), writer.take_parts()};
}

inline Frame encode(ToRank message) {
  return std::visit([](auto& each) { return encode(std::move(each)); }, message);
}

/// Number of frames that a heartbeat acknowledges; nothing if the frame is no heartbeat, or a malformed one.
inline std::optional<std::uint64_t> decode_heartbeat(std::span<const std::byte> frame) {
  FieldReader reader(frame);
  MessageKind kind{};
  reader.choice(kind, MessageKind::heartbeat, MessageKind::heartbeat);
  const std::optional<Heartbeat> heartbeat = detail::decode_as<Heartbeat, Heartbeat>(reader);
  return heartbeat ? std::optional<std::uint64_t>(heartbeat->received) : std::nullopt;
}

/// Decodes a store's message in a session; nothing if the frame does not follow the protocol.
inline std::optional<ToRank> decode_to_rank(std::span<const std::byte> frame) {
  FieldReader reader(frame);
  MessageKind kind{};
  reader.choice(kind, MessageKind::hello, MessageKind::heartbeat);
  switch (kind) {
    case MessageKind::welcome: return detail::decode_as<Welcome, ToRank>(reader);
    case MessageKind::failure: return detail::decode_as<Failure, ToRank>(reader);
    case MessageKind::response: return detail::decode_as<Response, ToRank>(reader);
    case MessageKind::left: return detail::decode_as<Left, ToRank>(reader);
    default: return std::nullopt;
  }
}

/// Decodes a rank's message in a session; nothing if the frame does not follow the protocol.
inline std::optional<FromRank> decode_from_rank(std::span<const std::byte> frame) {
  FieldReader reader(frame);
  MessageKind kind{};
  reader.choice(kind, MessageKind::hello, MessageKind::heartbeat);
  switch (kind) {
    case MessageKind::request: return detail::decode_as<Request, FromRank>(reader);
    case MessageKind::cancel: return detail::decode_as<Cancel, FromRank>(reader);
    case MessageKind::report: return detail::decode_as<FailureReport, FromRank>(reader);
    case MessageKind::leave: return detail::decode_as<Leave, FromRank>(reader);
    default: return std::nullopt;
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
