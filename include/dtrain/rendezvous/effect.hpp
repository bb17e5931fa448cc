#pragma once
/// @file
/// What may be said to and by a rank that has joined, and what a Job wants its server to do.

#include <string>
#include <variant>

#include "dtrain/rendezvous/message.hpp"
#include "dtrain/rendezvous/seats.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// What a connection is to be sent.
using ToRank = std::variant<Accepted, Welcome, Refused, Failure, Response, Left>;

/// What a connection that has joined may send.
using FromRank = std::variant<Request, Cancel, Report, Leave>;

/// @name Effects: what the server is to do, in order.
/// @{
struct Send {
  SessionId session = 0;
  ToRank message;
};
/// Close the connection once what was sent to it is out.
struct CloseAfterSending {
  SessionId session = 0;
};
struct Joined {
  int rank = 0;
  std::string host;
};
struct HasLeft {
  int rank = 0;
};
/// The job has its first cause.
struct HasFailed {
  Cause cause;
};
using Effect = std::variant<Send, CloseAfterSending, Joined, HasLeft, HasFailed>;
/// @}

}  // namespace DTRAIN_NAMESPACE::rendezvous
