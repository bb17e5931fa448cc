#pragma once
/// @file
/// Message sets of a joined session, and the actions that JobState returns to the server.

#include <string>
#include <utility>
#include <variant>

#include "dtrain/rendezvous/protocol/message.hpp"
#include "dtrain/rendezvous/server/rank_table.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Session messages from the store to a rank.
using ToRank = std::variant<Welcome, Failure, Response, Left>;

/// Session messages from a rank to the store.
using FromRank = std::variant<Request, Cancel, FailureReport, Leave>;

/// @name Actions that the server performs, in order
/// @{
struct SendMessage {
  SessionId session = 0;
  ToRank message;
};
/// Not inlined: g++ 12 would follow the move of a message into alternatives that it does not hold, and warn of them.
[[gnu::noinline]] inline SendMessage send_to(SessionId session, ToRank message) {
  return {session, std::move(message)};
}
/// A response that shares its values with the store.
struct SendValues {
  SessionId session = 0;
  ValueResponse message;
};
[[gnu::noinline]] inline SendValues send_to(SessionId session, ValueResponse message) {
  return {session, std::move(message)};
}
/// Close the session after its queued frames are sent.
struct CloseAfterSending {
  SessionId session = 0;
};
struct RankJoined {
  int rank = 0;
  std::string host;
};
struct RankLeft {
  int rank = 0;
};
struct JobFailedAction {
  Cause cause;
};
/// A rank has joined that may belong to another job.
struct LogWarning {
  std::string sentence;
};
using ServerAction =
    std::variant<SendMessage, SendValues, CloseAfterSending, RankJoined, RankLeft, JobFailedAction, LogWarning>;
/// @}

}  // namespace DTRAIN_NAMESPACE::rendezvous
