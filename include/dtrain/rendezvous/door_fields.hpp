#pragma once
/// @file
/// The fields of the messages at the door, for the codec.

#include <limits>

#include "dtrain/rendezvous/fields.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/message.hpp"

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

/// What follows the kind, magic, protocol and version of a Hello.
template <class Fields>
void fields(Fields& of, Hello& message) {
  of.choice(message.role, Role::rank, Role::launcher);
  of.number(message.generation);
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
  of.number(message.facts.rank, std::numeric_limits<int>::min(), max_int);  // out of range: refused with a sentence
  of.number(message.world_size, std::numeric_limits<int>::min(), max_int);
  of.text(message.facts.host_id, max_name_bytes);
  of.text(message.facts.host, max_name_bytes);
  of.number(message.facts.local_rank, 0, max_int);
  of.number(message.facts.local_world_size, 0, max_int);
  of.number(message.facts.node_rank, 0, max_int);
  of.number(message.facts.node_count, 0, max_int);
  of.raw_text(message.facts.agreed, max_agreed_bytes);
  of.text(message.job, max_name_bytes);
  fields(of, message.origin);
  of.flag(message.opens_store);
  of.number(message.process);
  of.number(message.patience_ms);
  of.bytes(message.proof);
}

template <class Fields>
void fields(Fields& of, Ticket& ticket) {
  of.number(ticket.session);
  of.bytes(ticket.key);
}

template <class Fields>
void fields(Fields& of, Resume& message) {
  fields(of, message.ticket);
  of.number(message.received);
  of.bytes(message.proof);
}

template <class Fields>
void fields(Fields& of, Accepted& message) {
  fields(of, message.ticket);
  of.number(message.received);
  of.number(message.heartbeat_ms);
  of.number(message.liveness_ms);
  of.number(message.grace_ms);
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
