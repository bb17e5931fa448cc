#pragma once
/// @file
/// The messages between a rank and the store of its job; this comment is the description of the protocol.
///
/// One TCP connection for each rank, held for the rank's life. Both sides send frames (net/frame.hpp: a length, then
/// that many bytes); the first byte of a frame is its MessageKind, the rest its fields in the order of the structs
/// below, integers little-endian, strings as a 32-bit length and their bytes. Every length is bounded (limits.hpp), and
/// a frame with bytes left over is malformed.
///
///   rank                                 store
///   Hello                        ->              one, within the handshake deadline; then nothing until Welcome
///                                <-      Accepted, at once; or Refused with a sentence, and the connection is closed
///                                <-      Welcome once all ranks have joined: who this rank is
///                                 or     Failure the job's first cause
///   Request (id)                 ->
///                                <-      Response (id)   in any order; get, wait and barrier answer when they can
///   Cancel (id)                  ->              its deadline passed: answered by the Response, whichever it became
///   Report (cause)               ->
///                                <-      Failure         to every rank, once: the first cause of the job
///   Leave                        ->
///                                <-      Left            then the rank closes
///
/// A connection that closes before Accepted means nothing, and the rank tries again: a store that has too many
/// connections that say nothing closes the oldest. After it, a connection that closes without Leave is a lost rank.
/// After a failure every request is answered Status::failed. What every version keeps: the kind, magic, protocol and
/// version of a Hello, and all of Refused; so two versions can tell each other apart. The nonces are for a proof of the
/// job's secret, which this version does not ask for.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/core/cause.hpp"
#include "dtrain/rendezvous/membership.hpp"
#include "dtrain/rendezvous/node_groups.hpp"
#include "dtrain/rendezvous/request.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

inline constexpr std::uint32_t protocol_magic = 0x4E525444;  // "DTRN"
inline constexpr std::uint16_t protocol_version = 1;

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
};

/// Who says hello. Others than ranks are for later versions.
enum class Role : std::uint8_t { rank = 1 };

using Nonce = std::array<std::uint8_t, 16>;

struct Hello {
  std::string version;  ///< of dtrain; the same on all ranks of a job
  Role role = Role::rank;
  Nonce nonce{};
  RankFacts facts;
  int world_size = 1;
  std::int64_t process = 0;       ///< its process id, for messages
  std::uint64_t patience_ms = 0;  ///< how long this rank waits for the others
};

/// The rank sits in its place and waits for the others.
struct Accepted {
  Nonce nonce{};  ///< the Hello's
};

struct Welcome {
  Membership membership;
};

struct Refused {
  std::string sentence;
};

/// The first cause, to a rank; the same fields as a Report, which goes to the store.
struct Failure {
  Cause cause;
};

struct Report {
  Cause cause;
};

struct Leave {};
struct Left {};

}  // namespace DTRAIN_NAMESPACE::rendezvous
