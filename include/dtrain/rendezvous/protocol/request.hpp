#pragma once
/// @file
/// MessageKind, and the store requests and responses of the protocol (message.hpp).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/rendezvous/protocol/limits.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// A number never changes its meaning. Each message has its kind as `message_kind`; a Hello is encoded apart.
enum class MessageKind : std::uint8_t {
  hello = 1,
  welcome = 2,
  refused = 3,
  failure = 4,
  request = 5,
  response = 6,
  cancel = 7,
  report = 8,
  leave = 9,
  left = 10,
  accepted = 11,
  challenge = 12,
  join = 13,
  resume = 14,
  heartbeat = 15,
};

/// Bound of all keys and values of one request, or of one response, so that each fits into a frame.
inline constexpr std::size_t max_batch_bytes = max_value_bytes + max_key_bytes;

enum class RequestKind : std::uint8_t {
  set = 1,      ///< keys[0], value
  get,          ///< keys[0]: waits until the key exists
  try_get,      ///< keys[0]
  add,          ///< keys[0], number
  wait,         ///< keys: waits until all exist at once
  barrier,      ///< keys[0]: its name; members
  compare_set,  ///< keys[0], expected, value: sets the key if it has the expected value (none: if it is missing)
  erase,        ///< keys[0]
  append,       ///< keys[0], value: appends it; a missing key counts as empty
  set_many,     ///< keys, and as many values: all or nothing
  get_many,     ///< keys: waits until all exist at once
  take,         ///< keys[0], number: as get; the store erases the key after `number` takes
};

inline constexpr bool takes_many(RequestKind kind) noexcept {
  return kind == RequestKind::wait || kind == RequestKind::set_many || kind == RequestKind::get_many;
}

struct Request {
  DTRAIN_MEMBERS_DEFINED_APART(Request);
  Request(std::uint64_t id_, RequestKind kind_, std::vector<std::string> keys_, std::string value_ = {},
          std::int64_t number_ = 0, std::optional<std::string> expected_ = {}, std::vector<std::string> values_ = {},
          RankSet members_ = {});

  static constexpr MessageKind message_kind = MessageKind::request;
  std::uint64_t id = 0;  ///< ascending within a session
  RequestKind kind = RequestKind::set;
  std::vector<std::string> keys;
  std::string value;
  std::int64_t number = 0;
  std::optional<std::string> expected{};
  std::vector<std::string> values{};
  RankSet members{};  ///< ranks of a barrier; empty: all ranks of the job
};

struct Cancel {
  static constexpr MessageKind message_kind = MessageKind::cancel;
  std::uint64_t id = 0;
};

enum class Status : std::uint8_t {
  ok = 1,
  missing,    ///< try_get, erase, compare_set: the key does not exist
  refused,    ///< text has the reason
  cancelled,  ///< text lists the missing keys or ranks
  failed,     ///< the job has failed; Failure has the cause
};

template <class Value>
struct BasicResponse {
  DTRAIN_MEMBERS_NOT_INLINED(BasicResponse);
  DTRAIN_NOT_INLINED explicit BasicResponse(std::uint64_t id_, Status status_ = Status::ok, Value text_ = {},
                                            std::int64_t number_ = 0, std::vector<Value> values_ = {})
      : id(id_), status(status_), text(std::move(text_)), number(number_), values(std::move(values_)) {}

  static constexpr MessageKind message_kind = MessageKind::response;
  std::uint64_t id = 0;
  Status status = Status::ok;
  Value text{};                 ///< the key's value, or an error sentence
  std::int64_t number = 0;      ///< add: the sum; append: the length; compare_set: 1 if it was set
  std::vector<Value> values{};  ///< get_many: in the order of the keys
};
using Response = BasicResponse<std::string>;

/// Value that the store shares with all responses that contain it. Null: empty.
using SharedValue = std::shared_ptr<const std::string>;
/// Response of a store, with shared values: many ranks may wait for one large value.
using ValueResponse = BasicResponse<SharedValue>;

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINE_MEMBERS(Request);

DTRAIN_DEFINED Request::Request(std::uint64_t id_, RequestKind kind_, std::vector<std::string> keys_,
                                std::string value_, std::int64_t number_, std::optional<std::string> expected_,
                                std::vector<std::string> values_, RankSet members_)
    : id(id_),
      kind(kind_),
      keys(std::move(keys_)),
      value(std::move(value_)),
      number(number_),
      expected(std::move(expected_)),
      values(std::move(values_)),
      members(std::move(members_)) {}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::rendezvous
