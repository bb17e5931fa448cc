#pragma once
/// @file
/// The fields of requests and their answers, in their order on the wire: for codec.hpp.

#include "dtrain/rendezvous/fields.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous::detail {

inline constexpr MessageKind kind_of(const Request*) {
  return MessageKind::request;
}
inline constexpr MessageKind kind_of(const Response*) {
  return MessageKind::response;
}
inline constexpr MessageKind kind_of(const Cancel*) {
  return MessageKind::cancel;
}

template <class Fields>
void fields(Fields& of, Request& message) {
  of.number(message.id);
  of.choice(message.operation, Operation::set, Operation::barrier);
  const bool several = message.operation == Operation::wait;
  of.texts(message.keys, several ? max_keys_of_a_wait : 1, max_key_bytes);
  if (message.operation == Operation::set) {
    of.text(message.value, max_value_bytes);
  }
  if (message.operation == Operation::add) {
    of.number(message.number);
  }
}

template <class Fields>
void fields(Fields& of, Response& message) {
  of.number(message.id);
  of.choice(message.status, Status::ok, Status::failed);
  of.text(message.text, max_value_bytes);
  of.number(message.number);
}

template <class Fields>
void fields(Fields& of, Cancel& message) {
  of.number(message.id);
}

}  // namespace DTRAIN_NAMESPACE::rendezvous::detail
