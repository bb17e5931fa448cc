#pragma once
/// @file
/// FormationOptions: sizes and waiting times of an elastic job, which run_elastic_job() sets; FormationSink: the
/// interface by which FormationState opens attempts and sends messages. FormationServer implements it.

#include <chrono>
#include <cstdint>
#include <optional>

#include "dtrain/core/cause.hpp"
#include "dtrain/rendezvous/formation/formation_messages.hpp"
#include "dtrain/rendezvous/formation/formation_workers.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

struct FormationOptions {
  int min_workers = 1;  ///< an attempt with fewer workers does not form
  int max_workers = 1;  ///< further workers wait

  std::chrono::milliseconds first_formation{30000};    ///< for workers up to max_workers, once min_workers are there
  std::chrono::milliseconds rejoin_timeout{60000};     ///< for a rank to leave a failed attempt, and to join the next
  std::chrono::milliseconds reconnect_timeout{10000};  ///< for a rank whose connection has ended
  std::chrono::milliseconds wait_timeout{600000};      ///< for min_workers, or for a worker that has the state
  std::chrono::milliseconds collect{1000};             ///< from the first newcomer to the end of the attempt
  std::chrono::milliseconds least_resize_gap{1000};    ///< between two attempts that newcomers end
  std::chrono::seconds longest_bar{60};  ///< for newcomers of a host, one of which broke an attempt before a commit
  int attempts_without_commit = 10;      ///< so many in a row end the job
};

/// FormationState calls the sink while it changes: none of these functions calls the state back.
class FormationSink {
 public:
  /// Opens an attempt, in place of the last one. @returns why it could not; the job then ends
  virtual std::optional<Cause> open_attempt(std::uint64_t attempt, int world_size) = 0;
  /// Fails the attempt that was opened last. The state counts it as failed from now on.
  virtual void fail_attempt(const Cause& cause) = 0;
  virtual void send(ConnectionId connection, const ToWorker& message) = 0;
  virtual void close(ConnectionId connection) = 0;
  /// The job is over. @param cause why it has failed; null: it has finished
  virtual void on_end(const Cause* cause) = 0;

 protected:
  ~FormationSink() = default;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
