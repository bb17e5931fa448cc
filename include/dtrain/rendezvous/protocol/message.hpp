#pragma once
/// @file
/// The messages between a rank and the store of its job; this comment is the description of the protocol.
///
/// Both sides of a TCP connection send frames (net/framing/frame.hpp: a length, then that many bytes); the first byte
/// of a frame is its MessageKind, the rest its fields in the order of the structs, integers little-endian, strings as a
/// 32-bit length and their bytes. Every length is bounded (limits.hpp), and a frame with bytes left over is malformed.
///
///   rank                                 store
///   Hello                        ->              who, of which attempt, with a secret or without; a nonce
///                                <-      Challenge   a nonce, and whether a secret is asked for
///   Join, with a proof           ->              within the handshake deadline
///                                <-      Accepted, with a proof, at once; or Refused, or Failure, and the end
///
/// From here on, a session: its frames are numbered on each side by counting them, Heartbeats left out.
///
///                                <-      Welcome once all ranks have joined: who this rank is
///                                 or     Failure the job's first cause
///   Request (id)                 ->
///                                <-      Response (id)   in any order; get, wait and barrier answer when they can
///   Cancel (id)                  ->              its deadline passed: answered by the Response, whichever it became
///   FailureReport (cause)        ->
///                                <-      Failure         to every rank, once: the first cause of the job
///   Leave                        ->
///                                <-      Left            then the rank closes
///   Heartbeat                    <->             how many frames have come; the rank's every Accepted::heartbeat_ms,
///                                                the store's as the answer to it, or to a part of a long frame; and
///                                                either side's when it has many bytes to acknowledge
///
/// Neither side sends more than max_unacknowledged_bytes before the other has acknowledged some of them; both read at
/// all times, so that acknowledgements come. A side that receives no byte for the liveness time takes the other for
/// lost. A connection that breaks without Leave is replaced by a new one within the reconnect window: Hello and
/// Challenge again, then Resume with the session's token instead of Join, answered by Accepted; each side then sends
/// what the other has not received. Otherwise the rank is lost.
///
/// A connection that closes before Accepted means nothing, and the rank tries again: a store that has too many
/// connections that send nothing closes the oldest. After a failure every request is answered Status::failed. What
/// every version keeps: the kind, magic, protocol and version of a Hello, and all of Refused; so two versions can tell
/// each other apart. The proofs are described in transcript.hpp.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "dtrain/core/cause.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "dtrain/rendezvous/membership/node_assignment.hpp"
#include "dtrain/rendezvous/membership/origin.hpp"
#include "dtrain/rendezvous/protocol/request.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// @name What a Hello begins with
/// @{
inline constexpr std::uint32_t protocol_magic = 0x4E525444;  // "DTRN"
inline constexpr std::uint16_t protocol_version = 3;
/// @}

/// What begins a frame. Numbers are never given to another meaning.
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

/// Whose job a session is of: the ranks', or that of the launchers of all nodes, which have a job of their own.
enum class ClientRole : std::uint8_t { rank = 1, launcher = 2 };

/// Random bytes, new for each handshake.
using Nonce = std::array<std::byte, 16>;

/// An HMAC-SHA256; zeros where there is no secret.
using Proof = std::array<std::byte, 32>;

/// @name In the handshake
/// @{
struct Hello {
  std::string version;  ///< of dtrain; the same on all ranks of a job
  ClientRole role = ClientRole::rank;
  std::uint64_t attempt = 0;  ///< counted from 0 by the launcher
  Nonce nonce{};
  bool has_secret = false;
};

struct Challenge {
  Nonce nonce{};
  bool asks_secret = false;
};

struct Join {
  RankInfo info;
  int world_size = 1;
  std::string job;                    ///< the job's name; empty where it has none
  Origin origin{};                    ///< what else tells the job from others
  bool opens_store = false;           ///< the store of this rank's job is its own to open
  std::int64_t process = 0;           ///< its process id, for messages
  std::uint64_t join_timeout_ms = 0;  ///< how long this rank waits for the others
  Proof proof{};
};

/// Names a session to the store that issued it; nobody else can guess the key.
struct SessionToken {
  std::uint64_t session = 0;
  Nonce key{};
};

struct Resume {
  SessionToken token;
  std::uint64_t received = 0;  ///< frames of the session
  Proof proof{};
};

/// The rank is admitted and waits for the others, or goes on with its session.
struct Accepted {
  SessionToken token;
  std::uint64_t received = 0;  ///< frames of the session; 0 where it begins
  std::uint32_t heartbeat_ms = 0;
  std::uint32_t liveness_ms = 0;
  std::uint32_t reconnect_window_ms = 0;  ///< how long the store waits for a Resume
  Proof proof{};
};

struct Refused {
  std::string sentence;
  bool other_job = false;  ///< the store is another job's: this rank's own may be elsewhere
};
/// @}

/// @name In a session
/// @{
struct Heartbeat {
  std::uint64_t received = 0;  ///< frames of the session: they need not be kept for a Resume any more
};

struct Welcome {
  Membership membership;
};

/// The first cause, to a rank; the same fields as a FailureReport, which goes to the store.
struct Failure {
  Cause cause;
};

struct FailureReport {
  Cause cause;
};

struct Leave {};
struct Left {};
/// @}

}  // namespace DTRAIN_NAMESPACE::rendezvous
