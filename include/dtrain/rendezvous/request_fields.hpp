#pragma once
/// @file
/// The fields of requests and their answers, in their order on the wire: for codec.hpp.

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "dtrain/rendezvous/fields.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous::detail {

inline constexpr MessageKind kind_of(const Request*) {
  return MessageKind::request;
}
template <class Value>
constexpr MessageKind kind_of(const BasicResponse<Value>*) {
  return MessageKind::response;
}
inline constexpr MessageKind kind_of(const Cancel*) {
  return MessageKind::cancel;
}

/// Exactly `count` values. @pre when writing, there are so many
template <class Fields, class Value>
void values_of(Fields& of, std::vector<Value>& values, std::size_t count) {
  values.resize(count);
  for (Value& value : values) {
    of.raw_text(value, max_value_bytes);
  }
}

/// Each run within the job, and behind the one before.
template <class Fields>
void fields(Fields& of, RankSet& set) {
  int count = static_cast<int>(set.runs.size());
  of.number(count, 0, static_cast<int>(max_party_runs));
  set.runs.resize(static_cast<std::size_t>(count));
  constexpr int most = max_world_size - 1;
  int behind = 0;
  for (RankSet::Run& run : set.runs) {
    of.number(run.first, behind, most);
    of.number(run.step, 1, most);
    of.number(run.more, 0, (most - run.first) / std::max(run.step, 1));
    behind = run.last() + 1;
  }
}

template <class Fields>
void fields(Fields& of, Request& message) {
  of.number(message.id);
  of.choice(message.operation, Operation::set, Operation::take);
  of.raw_texts(message.keys, takes_many(message.operation) ? max_keys_of_a_wait : 1, max_key_bytes);
  switch (message.operation) {
    case Operation::compare_set: {
      int expects_one = message.expected ? 1 : 0;
      of.number(expects_one, 0, 1);
      if (expects_one == 1) {
        of.raw_text(message.expected.has_value() ? *message.expected : message.expected.emplace(), max_value_bytes);
      }
      of.raw_text(message.value, max_value_bytes);
      break;
    }
    case Operation::set:
    case Operation::append: of.raw_text(message.value, max_value_bytes); break;
    case Operation::add:
    case Operation::take: of.number(message.number); break;
    case Operation::barrier: fields(of, message.parties); break;
    case Operation::set_many: values_of(of, message.values, message.keys.size()); break;
    default: break;
  }
}

template <class Fields, class Value>
void fields(Fields& of, BasicResponse<Value>& message) {
  of.number(message.id);
  of.choice(message.status, Status::ok, Status::failed);
  of.raw_text(message.text, max_value_bytes);
  of.number(message.number);
  int count = static_cast<int>(message.values.size());
  of.number(count, 0, static_cast<int>(max_keys_of_a_wait));
  values_of(of, message.values, static_cast<std::size_t>(count));
}

template <class Fields>
void fields(Fields& of, Cancel& message) {
  of.number(message.id);
}

}  // namespace DTRAIN_NAMESPACE::rendezvous::detail
