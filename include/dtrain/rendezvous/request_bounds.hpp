#pragma once
/// @file
/// What a rank may ask of the store at all, checked before anything is sent.

#include <cstddef>
#include <string>

#include "dtrain/core/error.hpp"
#include "dtrain/core/printable.hpp"
#include "dtrain/rendezvous/request.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// What a request is doing, for the beginning of sentences: "setting key 'a' and 2 more". @pre it has a key
inline std::string doing_of(const Request& request) {
  const char* verb = "";
  switch (request.operation) {
    case Operation::set: verb = "setting key "; break;
    case Operation::get: verb = "waiting for key "; break;
    case Operation::try_get: verb = "looking for key "; break;
    case Operation::add: verb = "adding to key "; break;
    case Operation::wait: verb = "waiting for key "; break;
    case Operation::barrier: verb = "waiting in barrier "; break;
    case Operation::compare_set: verb = "comparing and setting key "; break;
    case Operation::erase: verb = "erasing key "; break;
    case Operation::append: verb = "appending to key "; break;
    case Operation::set_many: verb = "setting key "; break;
    case Operation::get_many:
    case Operation::take: verb = "waiting for key "; break;
  }
  return verb + in_quotes(request.keys.front()) +
         (request.keys.size() > 1 ? " and " + std::to_string(request.keys.size() - 1) + " more" : "");
}

/// @throws Error (invalid_argument) for what is too long or too much, with the bound
inline void require_bounded(const Request& request, const std::string& doing) {
  const auto refuse = [&](const std::string& what, std::size_t bound, const char* rest = " are possible") {
    throw Error(Errc::invalid_argument, doing + ": " + what + "; at most " + std::to_string(bound) + rest);
  };
  const auto bytes = [](std::size_t count) { return std::to_string(count) + " bytes"; };
  if (request.keys.size() > max_keys_of_a_wait) {
    refuse("these are " + std::to_string(request.keys.size()) + " keys", max_keys_of_a_wait, " are possible at once");
  }
  if (request.parties.runs.size() > max_party_runs) {
    refuse("its " + std::to_string(request.parties.size()) + " ranks are " +
               std::to_string(request.parties.runs.size()) + " runs of equal steps",
           max_party_runs);
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
