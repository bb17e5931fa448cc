#pragma once
/// @file
/// Client-side bounds of store requests, and the text that names a request in error sentences.

#include <cstddef>
#include <string>

#include "dtrain/core/error.hpp"
#include "dtrain/core/sanitize.hpp"
#include "dtrain/rendezvous/protocol/request.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Beginning of an error sentence about a request: "setting key 'a' and 2 more". @pre the request has a key
inline std::string describe(const Request& request) {
  const char* verb = "";
  switch (request.kind) {
    case RequestKind::set: verb = "setting key "; break;
    case RequestKind::get: verb = "waiting for key "; break;
    case RequestKind::try_get: verb = "looking for key "; break;
    case RequestKind::add: verb = "adding to key "; break;
    case RequestKind::wait: verb = "waiting for key "; break;
    case RequestKind::barrier: verb = "waiting in barrier "; break;
    case RequestKind::compare_set: verb = "comparing and setting key "; break;
    case RequestKind::erase: verb = "erasing key "; break;
    case RequestKind::append: verb = "appending to key "; break;
    case RequestKind::set_many: verb = "setting key "; break;
    case RequestKind::get_many:
    case RequestKind::take: verb = "waiting for key "; break;
  }
  return verb + in_quotes(request.keys.front()) +
         (request.keys.size() > 1 ? " and " + std::to_string(request.keys.size() - 1) + " more" : "");
}

/// Checks a request against the bounds. @throws Error (invalid_argument) with the bound that it exceeds
inline void require_bounded(const Request& request, const std::string& doing) {
  const auto refuse = [&](const std::string& what, std::size_t bound, const char* rest = " are possible") {
    throw Error(Errc::invalid_argument, doing + ": " + what + "; at most " + std::to_string(bound) + rest);
  };
  const auto bytes = [](std::size_t count) { return std::to_string(count) + " bytes"; };
  if (request.keys.size() > max_keys_per_wait) {
    refuse("these are " + std::to_string(request.keys.size()) + " keys", max_keys_per_wait, " are possible at once");
  }
  if (request.members.ranges.size() > max_barrier_ranges) {
    refuse("its " + std::to_string(request.members.size()) + " ranks are " +
               std::to_string(request.members.ranges.size()) + " ranges of equal steps",
           max_barrier_ranges);
  }
  std::size_t sum = request.value.size() + (request.expected ? request.expected->size() : 0);
  for (const std::string& key : request.keys) {
    sum += key.size();
    if (key.size() > max_key_bytes) {
      refuse("it has " + bytes(key.size()) + " with its prefix", max_key_bytes);
    }
  }
  for (const std::string& value : request.values) {
    sum += value.size();
    if (value.size() > max_value_bytes) {
      refuse("a value has " + bytes(value.size()), max_value_bytes);
    }
  }
  if (request.value.size() > max_value_bytes) {
    refuse("the value has " + bytes(request.value.size()), max_value_bytes);
  }
  if (sum > max_batch_bytes) {
    refuse("its keys and values have " + bytes(sum) + " together", max_batch_bytes, " are possible at once");
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
