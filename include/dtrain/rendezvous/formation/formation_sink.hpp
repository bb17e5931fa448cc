#pragma once
/// @file
/// FormationSink: interface by which a formation opens attempts and sends messages. FormationState calls it,
/// FormationServer implements it.

#include <cstdint>

#include "dtrain/core/cause.hpp"
#include "dtrain/rendezvous/formation/formation_messages.hpp"
#include "dtrain/rendezvous/formation/formation_workers.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// FormationState calls the sink while it changes: none of these functions calls the state back.
class FormationSink {
 public:
  /// Opens an attempt, in place of the last one.
  virtual void open_attempt(std::uint64_t attempt, int world_size) = 0;
  /// Fails the attempt that was opened last. The state counts it as failed from now on.
  virtual void fail_attempt(const Cause& cause) = 0;
  virtual void send(ConnectionId connection, const Assignment& message) = 0;
  virtual void send(ConnectionId connection, const Finished& message) = 0;
  /// Sends the cause to the connection's worker: the job has ended without success.
  virtual void send(ConnectionId connection, const Failure& message) = 0;
  virtual void close(ConnectionId connection) = 0;
  /// The job is over. @param cause why it has failed; null: it has finished
  virtual void on_end(const Cause* cause) = 0;

 protected:
  ~FormationSink() = default;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
