#pragma once
/// @file
/// Store requests and responses: a part of the protocol (message.hpp).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/rendezvous/protocol/limits.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Of all keys and values of one request, or of one answer: so each fits into a frame.
inline constexpr std::size_t max_batch_bytes = max_value_bytes + max_key_bytes;

enum class RequestKind : std::uint8_t {
  set = 1,      ///< keys[0], value
  get,          ///< keys[0]: waits until it exists
  try_get,      ///< keys[0]
  add,          ///< keys[0], number
  wait,         ///< keys: waits until all exist at once
  barrier,      ///< keys[0]: its name; members
  compare_set,  ///< keys[0], expected, value: sets it where the key has the expected value, or is missing as expected
  erase,        ///< keys[0]
  append,       ///< keys[0], value: to the end of what the key has; a missing key counts as empty
  set_many,     ///< keys, and as many values: all or nothing
  get_many,     ///< keys: waits until all exist at once
  take,         ///< keys[0], number: as get; the key is erased once it was taken so often
};

/// Whether a request is about several keys.
inline constexpr bool takes_many(RequestKind kind) noexcept {
  return kind == RequestKind::wait || kind == RequestKind::set_many || kind == RequestKind::get_many;
}

struct Request {
  std::uint64_t id = 0;  ///< ascending on a connection
  RequestKind kind = RequestKind::set;
  std::vector<std::string> keys;
  std::string value;
  std::int64_t number = 0;
  std::optional<std::string> expected{};
  std::vector<std::string> values{};
  RankSet members{};  ///< of a barrier; none: all ranks of the job
};

struct Cancel {
  std::uint64_t id = 0;
};

enum class Status : std::uint8_t {
  ok = 1,
  missing,    ///< try_get, erase, compare_set: the key does not exist
  refused,    ///< text says why
  cancelled,  ///< text says what was missing
  failed,     ///< the job has failed; Failure has the cause
};

template <class Value>
struct BasicResponse {
  std::uint64_t id = 0;
  Status status = Status::ok;
  Value text{};                 ///< a value, or a sentence
  std::int64_t number = 0;      ///< add: the sum; append: the length; compare_set: 1 if it was set
  std::vector<Value> values{};  ///< get_many: in the order of the keys
};
using Response = BasicResponse<std::string>;

/// A value as the store and all answers that have it share it. Null: an empty one.
using SharedValue = std::shared_ptr<const std::string>;
/// The same answer, as a store gives it: many ranks may wait for one large value.
using ValueResponse = BasicResponse<SharedValue>;

}  // namespace DTRAIN_NAMESPACE::rendezvous
