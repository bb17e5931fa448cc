#pragma once
/// @file
/// Message sets of a joined session, and the actions that JobState returns to the server.

#include <string>
#include <utility>
#include <variant>

#include "dtrain/rendezvous/protocol/message.hpp"
#include "dtrain/rendezvous/server/rank_table.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// What a store may send in a session.
using ToRank = std::variant<Welcome, Failure, Response, Left>;

/// What a rank may send in its session.
using FromRank = std::variant<Request, Cancel, FailureReport, Leave>;

/// @name Actions: what the server is to do, in order.
/// @{
struct SendMessage {
  SessionId session = 0;
  ToRank message;
};
/// Not inlined: g++ 12 would follow the move of a message into alternatives that it does not hold, and warn of them.
[[gnu::noinline]] inline SendMessage send_to(SessionId session, ToRank message) {
  return {session, std::move(message)};
}
/// The answer to a request that has values.
struct SendValues {
  SessionId session = 0;
  ValueResponse message;
};
[[gnu::noinline]] inline SendValues send_to(SessionId session, ValueResponse message) {
  return {session, std::move(message)};
}
/// Close the session once what was sent to it is out.
struct CloseAfterSending {
  SessionId session = 0;
};
/// A rank has joined.
struct RankJoined {
  int rank = 0;
  std::string host;
};
/// A rank has left.
struct RankLeft {
  int rank = 0;
};
/// The job has its first cause.
struct JobFailedAction {
  Cause cause;
};
/// A rank has joined that may be another job's.
struct LogWarning {
  std::string sentence;
};
using ServerAction =
    std::variant<SendMessage, SendValues, CloseAfterSending, RankJoined, RankLeft, JobFailedAction, LogWarning>;
/// @}

}  // namespace DTRAIN_NAMESPACE::rendezvous
