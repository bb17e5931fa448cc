#pragma once
/// @file
/// JobSink: what the state of a job asks of its server; tests record it instead.

#include <string>

#include "dtrain/rendezvous/protocol/message.hpp"
#include "dtrain/rendezvous/server_state/rank_table.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// JobState and RequestHandler call it while they change: none of these functions calls them back.
class JobSink {
 public:
  virtual void send(SessionId session, ToRank message) = 0;
  /// Sends a response that shares its values with the store.
  virtual void send(SessionId session, ValueResponse message) = 0;
  virtual void close_after_sending(SessionId session) = 0;
  virtual void on_joined(int rank, const std::string& host) = 0;
  virtual void on_left(int rank) = 0;
  virtual void on_failure(const Cause& cause) = 0;
  /// A rank has joined that may belong to another job.
  virtual void warn(const std::string& sentence) = 0;

 protected:
  ~JobSink() = default;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
