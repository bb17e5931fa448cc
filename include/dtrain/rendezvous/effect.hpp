#pragma once
/// @file
/// What may be said to and by a rank that has joined, and what a Job wants its server to do.

#include <string>
#include <utility>
#include <variant>

#include "dtrain/rendezvous/message.hpp"
#include "dtrain/rendezvous/seats.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// What a session is to be sent.
using ToRank = std::variant<Welcome, Failure, Response, Left>;

/// What a rank may send in its session.
using FromRank = std::variant<Request, Cancel, Report, Leave>;

/// @name Effects: what the server is to do, in order.
/// @{
struct Send {
  SessionId session = 0;
  ToRank message;
};
/// Not inlined: g++ 12 would follow the move of a message into alternatives that it does not hold, and warn of them.
[[gnu::noinline]] inline Send send_to(SessionId session, ToRank message) {
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
/// A rank has taken its place.
struct Joined {
  int rank = 0;
  std::string host;
};
/// A rank is done.
struct HasLeft {
  int rank = 0;
};
/// The job has its first cause.
struct HasFailed {
  Cause cause;
};
/// A rank has joined that may be another job's.
struct Doubt {
  std::string sentence;
};
using Effect = std::variant<Send, SendValues, CloseAfterSending, Joined, HasLeft, HasFailed, Doubt>;
/// @}

}  // namespace DTRAIN_NAMESPACE::rendezvous
