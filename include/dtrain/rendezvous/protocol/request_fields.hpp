#pragma once
/// @file
/// Fields of requests and responses in their order on the wire, for session_codec.hpp.

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "dtrain/rendezvous/protocol/fields.hpp"
#include "dtrain/rendezvous/protocol/limits.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

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

/// Exactly `count` values. @pre when writing, `values` has `count` elements
template <class Fields, class Value>
void values_of(Fields& of, std::vector<Value>& values, std::size_t count) {
  values.resize(count);
  for (Value& value : values) {
    of.raw_text(value, max_value_bytes);
  }
}

/// Ranges of ranks below max_world_size, each after the end of the one before.
template <class Fields>
void fields(Fields& of, RankSet& set) {
  int count = static_cast<int>(set.ranges.size());
  of.number(count, 0, static_cast<int>(max_barrier_ranges));
  set.ranges.resize(static_cast<std::size_t>(count));
  constexpr int most = max_world_size - 1;
  int behind = 0;
  for (RankSet::RankRange& range : set.ranges) {
    of.number(range.first, behind, most);
    of.number(range.step, 1, most);
    of.number(range.more, 0, (most - range.first) / std::max(range.step, 1));
    behind = range.last() + 1;
  }
}

template <class Fields>
void fields(Fields& of, Request& message) {
  of.number(message.id);
  of.choice(message.kind, RequestKind::set, RequestKind::take);
  of.raw_texts(message.keys, takes_many(message.kind) ? max_keys_per_wait : 1, max_key_bytes);
  switch (message.kind) {
    case RequestKind::compare_set: {
      int expects_one = message.expected ? 1 : 0;
      of.number(expects_one, 0, 1);
      if (expects_one == 1) {
        of.raw_text(message.expected.has_value() ? *message.expected : message.expected.emplace(), max_value_bytes);
      }
      of.raw_text(message.value, max_value_bytes);
      break;
    }
    case RequestKind::set:
    case RequestKind::append: of.raw_text(message.value, max_value_bytes); break;
    case RequestKind::add:
    case RequestKind::take: of.number(message.number); break;
    case RequestKind::barrier: fields(of, message.members); break;
    case RequestKind::set_many: values_of(of, message.values, message.keys.size()); break;
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
  of.number(count, 0, static_cast<int>(max_keys_per_wait));
  values_of(of, message.values, static_cast<std::size_t>(count));
}

template <class Fields>
void fields(Fields& of, Cancel& message) {
  of.number(message.id);
}

}  // namespace DTRAIN_NAMESPACE::rendezvous::detail
