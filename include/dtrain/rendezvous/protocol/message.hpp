#pragma once
/// @file
/// Protocol messages between a rank and its job's store: a handshake, then requests, responses, failures and
/// heartbeats.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "dtrain/rendezvous/membership/origin.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

// Both sides of a TCP connection send frames (net/framing/frame.hpp: a length, then that many bytes). The first byte
// of a frame is its MessageKind; the rest is its fields, in the order of the structs. Integers are little-endian,
// strings a 32-bit length and their bytes. Every length is bounded (limits.hpp); left-over bytes are an error.
//
//   rank                                 store
//   Hello                        ->              role, attempt, whether it has a secret; a nonce
//                                <-      Challenge   a nonce, and whether the store requires a secret
//   Join, with a proof           ->              within the handshake timeout
//                                <-      Accepted, with a proof, at once; or Refused, or Failure, and the end
//
// From here on, a session. It ends with its connection.
//
//                                <-      Welcome once all ranks have joined: the rank's Membership
//                                 or     Failure the job's first cause
//   Request (id)                 ->
//                                <-      Response (id)   in any order; waits and barriers once complete
//   Cancel (id)                  ->              its deadline passed: one Response answers both
//   FailureReport (cause)        ->
//                                <-      Failure         to every rank, once: the first cause of the job
//   RankStatus                   ->              what the rank is doing, about once a second
//   Leave                        ->
//                                <-      Left            then the rank closes
//   Heartbeat                    <->             no fields; the rank's every Accepted::heartbeat_ms, the store's
//                                                answer it, or a part of a long frame
//
// A rank reads at all times. A store does not read from a rank that leaves many responses unread (session.hpp). A side
// that receives no byte for the liveness time considers the other lost. A connection that ends without Leave is the
// loss of the rank, or of the store.
//
// If a connection closes before Accepted, the rank tries again: a store with too many pending connections closes the
// oldest. If the store has sent Accepted and has received nothing of the session, the same process may join again
// within Limits::rejoin; the store repeats what it had sent. After a failure, every request is answered
// Status::failed. Every version keeps the kind, magic, protocol and version of a Hello, and all of Refused, so that
// versions recognise each other. Proofs: secret.hpp.

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
  heartbeat = 15,  ///< 14 belonged to protocol 3
  announce = 16,   ///< the first of formation/formation_messages.hpp
  assignment = 17,
  committed = 18,
  finished = 19,
  barred = 20,
  call_request = 21,
  called = 22,
  own_error = 23,
  status = 24,
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
  RankSet members{};      ///< ranks of a barrier; empty: all ranks of the job
  std::string purpose{};  ///< purpose of a call of dtrain's own, which error sentences say in place of its keys
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

/// @name First fields of a Hello
/// @{
inline constexpr std::uint32_t protocol_magic = 0x4E525444;  // "DTRN"
inline constexpr std::uint16_t protocol_version = 7;
/// @}

/// The job of a session: the ranks' job, or the launchers', which is a separate job of one launcher for each node. A
/// worker of an elastic job has a connection apart from the attempts (formation/formation_messages.hpp).
enum class ClientRole : std::uint8_t { rank = 1, launcher = 2, worker = 3 };

/// Random bytes, new for each handshake.
using Nonce = std::array<std::byte, 16>;

/// HMAC-SHA256 (secret.hpp); zeros if there is no secret.
using Proof = std::array<std::byte, 32>;

/// @name Messages of the handshake
/// @{
struct Hello {
  std::string version;  ///< dtrain's version, the same on all ranks of a job
  ClientRole role = ClientRole::rank;
  std::uint64_t attempt = 0;  ///< counted from 0 by the launcher
  Nonce nonce{};
  bool has_secret = false;
};

struct Challenge {
  static constexpr MessageKind message_kind = MessageKind::challenge;
  Nonce nonce{};
  bool asks_secret = false;
};

struct Join {
  DTRAIN_MEMBERS_NOT_INLINED(Join);

  static constexpr MessageKind message_kind = MessageKind::join;
  RankInfo info;
  int world_size = 1;
  std::string job;                    ///< name of the job; empty if it has none
  Origin origin{};                    ///< further facts that distinguish the job from others
  bool opens_store = false;           ///< this rank hosts its job's store
  std::int64_t process = 0;           ///< its process id, for error sentences
  std::uint64_t join_timeout_ms = 0;  ///< how long this rank waits for the others
  Proof proof{};
};

/// The store has admitted the rank, which waits for the others.
struct Accepted {
  static constexpr MessageKind message_kind = MessageKind::accepted;
  std::uint32_t heartbeat_ms = 0;
  std::uint32_t liveness_ms = 0;
  Proof proof{};
};

struct Refused {
  static constexpr MessageKind message_kind = MessageKind::refused;
  std::string sentence;
  bool other_job = false;  ///< this store is another job's; the store of this rank's job may be at another port
};
/// @}

/// @name Messages of a session, except the Heartbeat (codec.hpp)
/// @{
struct Welcome {
  static constexpr MessageKind message_kind = MessageKind::welcome;
  Membership membership;
};

/// The job's first cause, from the store to a rank; a FailureReport goes from a rank to the store.
struct Failure {
  static constexpr MessageKind message_kind = MessageKind::failure;
  Cause cause;
};

struct FailureReport {
  static constexpr MessageKind message_kind = MessageKind::report;
  Cause cause;
};

struct Leave {
  static constexpr MessageKind message_kind = MessageKind::leave;
};
struct Left {
  static constexpr MessageKind message_kind = MessageKind::left;
};

/// Where the thread is that drives a rank's steps.
enum class RankPhase : std::uint8_t {
  outside = 1,  ///< between steps
  backward,     ///< between the begin of a step and its finish()
  finish,
  unwinding,  ///< an exception has left the rank's function, or a step
};

/// How long a rank computed in a window of its steps, in nanoseconds of a step, without its waits.
struct ComputingWindow {
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  std::uint64_t steps = 0;  ///< the number of times in the quartiles; 0: there is no window yet
  std::uint64_t lower_quartile = 0;
  std::uint64_t median = 0;
  std::uint64_t upper_quartile = 0;
  std::uint64_t backward = 0;   ///< the median of the backward passes
  std::uint64_t outside = 0;    ///< the median of forward pass, optimizer and data
  std::uint32_t ranks = 0;      ///< members of the wrapper's group
  std::uint32_t core_wait = 0;  ///< thousandths of the time in which the thread waited for a core
  std::uint32_t passes = 1000;  ///< thousandths of passes in a step, those under no_sync() included

  friend bool operator==(const ComputingWindow&, const ComputingWindow&) = default;
};

/// Digest of a rank's weights.
struct ValuesDigest {
  std::uint64_t steps = 0;  ///< steps before it; 0: there is none
  std::uint64_t digest = 0;
  std::uint32_t ranks = 0;  ///< members of the wrapper's group
};

/// From a rank to the store: twice in a liveness time at least, and once more when the rank learns of the job's
/// failure.
struct RankStatus {
  DTRAIN_MEMBERS_NOT_INLINED(RankStatus);

  static constexpr MessageKind message_kind = MessageKind::status;
  static constexpr std::size_t most_channels = 4;
  static constexpr std::size_t max_call_bytes = 160;
  static constexpr std::size_t max_finding_bytes = 400;

  /// A channel of the rank.
  struct Channel {
    std::string name;
    std::string call;                ///< the operation that has begun last
    std::uint64_t sequence = 0;      ///< its number among the channel's collectives; 0: point to point, or none
    std::uint64_t called = 0;        ///< number of the last collective that this rank has begun, or enqueued on a GPU
    std::uint64_t unchanged_ms = 0;  ///< how long none of these has changed, to within an interval
    bool is_in_operation = false;    ///< whether `call` has not ended
  };

  /// A sentence for the log of the job.
  struct Finding {
    std::uint32_t number = 0;  ///< counts the rank's; 0: none
    std::uint64_t step = 0;    ///< steps that the rank's wrappers had begun
    bool is_sum = false;       ///< whether every rank has it, and another rank's finding explains it
    std::string text;
  };

  RankPhase phase = RankPhase::outside;
  std::uint32_t process = 0;
  std::uint64_t step = 0;   ///< the number of the last step that has begun; 0: none has
  std::uint32_t ready = 0;  ///< gradients that are ready in this step
  std::uint32_t parameters = 0;
  std::string missing{};            ///< a parameter whose gradient is not ready
  std::string thread{};             ///< ThreadActivity of the thread that drives the steps
  std::uint64_t unchanged_ms = 0;   ///< how long step, ready and channels have not changed, to within an interval
  std::vector<Channel> channels{};  ///< those in an operation first, then the ones used last
  ValuesDigest values{};            ///< the weights of the wrapper of `computing`
  Finding finding{};                ///< the latest
  ComputingWindow computing{};      ///< the first wrapper's
};

/// From the store to a rank.
using ToRank = std::variant<Welcome, Failure, Response, Left>;

/// From a rank to the store.
using FromRank = std::variant<Request, Cancel, FailureReport, Leave, RankStatus>;
/// @}

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
