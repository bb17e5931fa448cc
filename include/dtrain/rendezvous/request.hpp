#pragma once
/// @file
/// What a rank may ask of the store of its job, and what it is answered: a part of the protocol (message.hpp).

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

enum class Operation : std::uint8_t {
  set = 1,  ///< keys[0], value
  get,      ///< keys[0]: waits until it exists
  try_get,  ///< keys[0]
  add,      ///< keys[0], number
  wait,     ///< keys: waits until all exist
  barrier,  ///< keys[0]: its name
};

struct Request {
  std::uint64_t id = 0;  ///< ascending on a connection
  Operation operation = Operation::set;
  std::vector<std::string> keys;
  std::string value;
  std::int64_t number = 0;
};

struct Cancel {
  std::uint64_t id = 0;
};

enum class Status : std::uint8_t {
  ok = 1,
  missing,  ///< try_get of a key that does not exist
  refused,  ///< text says why
  gave_up,  ///< cancelled; text says what was waited for in vain
  failed,   ///< the job has failed; Failure has the cause
};

struct Response {
  std::uint64_t id = 0;
  Status status = Status::ok;
  std::string text;         ///< a value, or a sentence
  std::int64_t number = 0;  ///< what add came to
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
