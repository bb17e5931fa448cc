#pragma once
/// @file
/// Formation messages: the protocol between an elastic job's workers and its store, apart from the attempts' sessions.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "dtrain/core/config.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/rendezvous/formation/progress.hpp"
#include "dtrain/rendezvous/formation/weights_summary.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/protocol/codec.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

// A worker is a process that takes part in several attempts. It has one connection with ClientRole::worker, which
// begins as every connection does (protocol/message.hpp), with an Announce in place of the Join:
//
//   worker                               store
//   Hello, Challenge             <->
//   Announce, with a proof       ->
//                                <-      Accepted, with a proof; or Refused, or Failure, and the end
//                                <-      Barred      for a time the worker gets no rank: newcomers of its host broke
//                                                    attempts; the store may send further ones
//                                <-      Assignment  the worker's rank in the next attempt, which it joins as a rank
//   Committed                    ->              once an attempt, after the first step that it has committed there
//                                <-      CallRequest newcomers wait: the worker reports the program's next call of
//   Called                       ->              dtrain, so that no attempt ends while the program evaluates
//   Finished                     ->              its function has returned in this attempt
//                                <-      Finished    on all ranks of the attempt: the job has finished
//   Announce                     ->              its attempt has failed, and the worker has ended all of it
//                                <-      Barred, Assignment, Finished, or Failure: the job's cause; OwnError: the
//                                        error of the attempt is the worker's own, which ends by it
//   FailureReport                ->              the worker ends for this cause; the store closes the connection
//   Heartbeat                    <->
//
// After the end of a connection the worker connects and announces itself again.

struct Announce {
  DTRAIN_MEMBERS_NOT_INLINED(Announce);

  static constexpr MessageKind message_kind = MessageKind::announce;
  WorkerId worker;
  std::string host;       ///< host name, for error sentences
  std::uint64_t job = 0;  ///< Assignment::job; 0 before the first
  TrainingProgress progress;
  std::string settings;  ///< a line that names the job, then lines "name=value"; equal on all workers
  /// The error that ended the worker's part in its last attempt, if it was no failure of others. An exception or a
  /// disagreement came from the program, names `rank`, and the store decides whose it is (attribute_errors()). A loss
  /// says that the worker could not take part, and tries again.
  std::optional<Cause> error{};
  Proof proof{};  ///< the proof in the first Announce of a connection
};

struct Committed {
  static constexpr MessageKind message_kind = MessageKind::committed;
  std::uint64_t attempt = 0;
  WeightsSummary weights{};  ///< the wrapped weights in an attempt with receivers
};

struct Finished {
  static constexpr MessageKind message_kind = MessageKind::finished;
  std::uint64_t attempt = 0;
  bool is_member = false;    ///< set by the store: the receiver was a rank of that attempt
  std::uint64_t digest = 0;  ///< a worker's digest of its kept state; 0: it is not compared
};

struct CallRequest {
  static constexpr MessageKind message_kind = MessageKind::call_request;
  std::uint64_t attempt = 0;
};

struct Called {
  static constexpr MessageKind message_kind = MessageKind::called;
  std::uint64_t attempt = 0;
};

struct OwnError {
  static constexpr MessageKind message_kind = MessageKind::own_error;
  std::string sentence;
};

struct Barred {
  static constexpr MessageKind message_kind = MessageKind::barred;
  std::uint32_t milliseconds = 0;  ///< the time from now on
  std::string reason;              ///< a clause
};

/// @name Fields of each message in their order on the wire
/// @{
inline void fields(Serializer& of, TrainingProgress& progress) {
  of.number(progress.attempt);
  of.number(progress.steps);
  of.number(progress.repeated, 0, progress.steps);
  of.flag(progress.is_sharded);
}

inline void fields(Serializer& of, Announce& message) {
  of.text(message.worker.host_id, max_name_bytes);
  of.number(message.worker.process);
  of.number(message.worker.nonce);
  of.text(message.host, max_name_bytes);
  of.number(message.job);
  fields(of, message.progress);
  of.raw_text(message.settings, max_settings_bytes);
  of.maybe(message.error, [&of](Cause& cause) { fields(of, cause); });
  of.bytes(message.proof);
}

inline void fields(Serializer& of, Assignment& message) {
  of.number(message.job);
  of.number(message.attempt);
  of.number(message.rank, 0, max_world_size - 1);
  of.number(message.world_size, message.rank + 1, max_world_size);
  fields(of, message.source);
  of.number(message.receivers, 0, message.world_size);
}

inline void fields(Serializer& of, WeightsSummary& summary) {
  const auto real = [&of](double& value) {
    auto bits = std::bit_cast<std::uint64_t>(value);
    of.number(bits);
    value = std::bit_cast<double>(bits);
  };
  of.number(summary.digest);
  real(summary.rounding);
  std::for_each(summary.sums.begin(), summary.sums.end(), real);
}

inline void fields(Serializer& of, Committed& message) {
  of.number(message.attempt);
  fields(of, message.weights);
}

inline void fields(Serializer& of, Finished& message) {
  of.number(message.attempt);
  of.flag(message.is_member);
  of.number(message.digest);
}

inline void fields(Serializer& of, CallRequest& message) {
  of.number(message.attempt);
}
inline void fields(Serializer& of, Called& message) {
  of.number(message.attempt);
}
inline void fields(Serializer& of, OwnError& message) {
  of.text(message.sentence, max_sentence_bytes);
}

inline void fields(Serializer& of, Barred& message) {
  of.number(message.milliseconds);
  of.text(message.reason, max_sentence_bytes);
}
/// @}

/// From a worker to the store, once the store has accepted its first Announce.
using FromWorker = std::variant<Announce, Committed, Called, Finished, FailureReport>;

/// From the store to a worker.
using ToWorker = std::variant<Assignment, Finished, Failure, Refused, Barred, CallRequest, OwnError>;

}  // namespace DTRAIN_NAMESPACE::rendezvous
