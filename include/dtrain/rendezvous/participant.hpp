#pragma once
/// @file
/// rendezvous::Participant: a rank's whole control plane, for callers that block.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/loop_thread.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/membership.hpp"
#include "dtrain/rendezvous/origin.hpp"
#include "dtrain/rendezvous/secret.hpp"
#include "dtrain/rendezvous/store.hpp"

namespace DTRAIN_NAMESPACE::net {
class Listener;
}

namespace DTRAIN_NAMESPACE::rendezvous {

class Control;
struct HostIdentity;

/// Who this rank is, as far as it knows, and where its job meets.
struct ParticipantOptions {
  int rank = 0;
  int world_size = 1;
  /// @name What the launcher states as certain: checked, and an error where it is wrong. Guesses stay empty.
  /// @{
  std::optional<int> local_rank{};
  std::optional<int> local_world_size{};
  std::optional<int> node_rank{};
  std::optional<int> node_count{};
  /// @}
  std::string master_host = "127.0.0.1";
  std::uint16_t master_port = 0;
  /// At which of so many ports from there on the store is: the first that is free. More than 1 only with `job`, by
  /// which the ranks recognise it.
  std::uint16_t master_ports = 1;
  bool host_store = false;  ///< this rank opens the store at master_host:master_port
  std::chrono::milliseconds timeout{600000};
  std::optional<std::string> host_id{};     ///< DTRAIN_HOST_ID
  std::optional<std::string> interface {};  ///< DTRAIN_INTERFACE: where this rank, and a store of its, is to be reached
  std::optional<Secret> secret{};           ///< of the job, where it has one
  std::uint64_t generation = 0;             ///< the attempt
  std::string job{};                        ///< its name; empty where it has none
  Origin origin{};                          ///< what else tells it from others
  std::string agreed{};                     ///< what must be the same on all ranks (agreed_terms.hpp)
  Limits limits{};
};

/// Owns a thread with a loop, on which the rank's session lives, and the store where this rank hosts it.
/// Threads: construction, leave_blocking and destruction from one thread; the rest from any.
class Participant {
 public:
  /// Joins the job. A job of one rank that hosts its own store takes a port that the system chooses.
  /// Collective, blocking: until all ranks have joined, at most `timeout` and a second, for what the store says then.
  /// @throws what Session::join, listen_for_ranks and host_identity throw, with nothing left behind
  explicit Participant(const ParticipantOptions& options,
                       std::shared_ptr<FailureLatch> failure = std::make_shared<FailureLatch>());
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  /// Without leave_blocking before it, the others see the loss of this rank. Blocking: a second at most, where this
  /// rank hosts the store, so that the others hear the cause from it.
  ~Participant();

  const Membership& membership() const noexcept { return membership_; }
  Store store() const { return {exchange_, control_}; }
  const std::shared_ptr<FailureLatch>& failure() const noexcept { return failure_; }

  /// The thread whose loop carries the session: for other parts of the rank's control plane.
  async::LoopThread& control_thread() noexcept { return thread_; }

  /// Says leave(ok); afterwards the store can no longer be used. The host of the store stays until all have left.
  /// Blocking: until the deadline at most. @returns whether all that was done by then
  bool leave_blocking(Deadline deadline);

 private:
  struct Ends;

  async::Task<void> join(async::EventLoop& loop, const ParticipantOptions& options, const HostIdentity& host,
                         Deadline deadline);
  void open_store(async::EventLoop& loop, std::vector<net::Listener> listeners, const ParticipantOptions& options,
                  const HostIdentity& host, Deadline formation);
  async::Task<bool> leave_all(Deadline deadline);
  async::Task<void> bid_farewell();
  async::Task<void> drop();
  void install_reporter();
  void close() noexcept;

  std::shared_ptr<FailureLatch> failure_;
  async::LoopThread thread_;
  std::shared_ptr<Control> control_;
  Membership membership_;
  std::weak_ptr<Exchange> exchange_;
  std::unique_ptr<Ends> ends_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS
#include "dtrain/rendezvous/participant_definitions.hpp"
#endif
