#pragma once
/// @file
/// Fields of the handshake messages in their order on the wire, for handshake_codec.hpp.

#include <limits>

#include "dtrain/rendezvous/protocol/fields.hpp"
#include "dtrain/rendezvous/protocol/limits.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

inline constexpr int max_int = std::numeric_limits<int>::max();

/// @name The kind of each message, and its fields in their order on the wire. A proof comes last (transcript.hpp).
/// @{
inline constexpr MessageKind kind_of(const Challenge*) {
  return MessageKind::challenge;
}
inline constexpr MessageKind kind_of(const Join*) {
  return MessageKind::join;
}
inline constexpr MessageKind kind_of(const Resume*) {
  return MessageKind::resume;
}
inline constexpr MessageKind kind_of(const Accepted*) {
  return MessageKind::accepted;
}
inline constexpr MessageKind kind_of(const Refused*) {
  return MessageKind::refused;
}

/// Fields after the kind, magic, protocol and version of a Hello.
template <class Fields>
void fields(Fields& of, Hello& message) {
  of.choice(message.role, ClientRole::rank, ClientRole::launcher);
  of.number(message.attempt);
  of.bytes(message.nonce);
  of.flag(message.has_secret);
}

template <class Fields>
void fields(Fields& of, Challenge& message) {
  of.bytes(message.nonce);
  of.flag(message.asks_secret);
}

template <class Fields>
void fields(Fields& of, Origin& origin) {
  of.flag(origin.is_exact_job);
  of.flag(origin.one_starter);
  of.number(origin.process_space);
  of.number(origin.starter);
  of.number(origin.starter_began);
  of.text(origin.starter_name, max_name_bytes);
  of.text(origin.program, max_name_bytes);
  of.text(origin.build, max_name_bytes);
}

template <class Fields>
void fields(Fields& of, Join& message) {
  of.number(message.info.rank, std::numeric_limits<int>::min(), max_int);  // out of range: refused with a sentence
  of.number(message.world_size, std::numeric_limits<int>::min(), max_int);
  of.text(message.info.host_id, max_name_bytes);
  of.text(message.info.host, max_name_bytes);
  of.number(message.info.local_rank, 0, max_int);
  of.number(message.info.local_world_size, 0, max_int);
  of.number(message.info.node_rank, 0, max_int);
  of.number(message.info.node_count, 0, max_int);
  of.raw_text(message.info.settings, max_settings_bytes);
  of.text(message.job, max_name_bytes);
  fields(of, message.origin);
  of.flag(message.opens_store);
  of.number(message.process);
  of.number(message.join_timeout_ms);
  of.bytes(message.proof);
}

template <class Fields>
void fields(Fields& of, SessionToken& token) {
  of.number(token.session);
  of.bytes(token.key);
}

template <class Fields>
void fields(Fields& of, Resume& message) {
  fields(of, message.token);
  of.number(message.received);
  of.bytes(message.proof);
}

template <class Fields>
void fields(Fields& of, Accepted& message) {
  fields(of, message.token);
  of.number(message.received);
  of.number(message.heartbeat_ms);
  of.number(message.liveness_ms);
  of.number(message.reconnect_window_ms);
  of.bytes(message.proof);
}

template <class Fields>
void fields(Fields& of, Refused& message) {
  of.text(message.sentence, max_sentence_bytes);
  of.flag(message.other_job);
}
/// @}

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE::rendezvous
