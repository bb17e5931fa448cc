#pragma once
/// @file
/// rendezvous::ControlPlane: a rank's whole control plane, for callers that block.

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
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "dtrain/rendezvous/membership/origin.hpp"
#include "dtrain/rendezvous/protocol/limits.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"

namespace DTRAIN_NAMESPACE::net {
class Listener;
}

namespace DTRAIN_NAMESPACE::rendezvous {

class LoopHandle;
struct HostIdentity;

/// Who this rank is, as far as it knows, and where its job meets.
struct ControlPlaneOptions {
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
  std::uint64_t attempt = 0;                ///< counted from 0
  std::string job{};                        ///< its name; empty where it has none
  Origin origin{};                          ///< what else tells it from others
  std::string settings{};                   ///< what must be the same on all ranks (job_settings.hpp)
  Limits limits{};
};

/// Owns a thread with a loop, on which the rank's session lives, and the store where this rank hosts it.
/// Threads: construction, leave_blocking and destruction from one thread; the rest from any.
class ControlPlane {
 public:
  /// Joins the job. A job of one rank that hosts its own store takes a port that the system chooses.
  /// Collective, blocking: until all ranks have joined, at most `timeout` and a second, for the store's answer then.
  /// @throws what JoinedJob::join, listen_for_ranks and host_identity throw, with nothing left behind
  explicit ControlPlane(const ControlPlaneOptions& options,
                        std::shared_ptr<FailureLatch> failure = std::make_shared<FailureLatch>());
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  /// Without leave_blocking before it, the others see the loss of this rank. Blocking: a second at most, where this
  /// rank hosts the store, so that the others receive the cause from it.
  ~ControlPlane();

  const Membership& membership() const noexcept { return membership_; }
  Store store() const { return {client_, loop_handle_}; }
  const std::shared_ptr<FailureLatch>& failure() const noexcept { return failure_; }

  /// The thread whose loop carries the session: for other parts of the rank's control plane.
  async::LoopThread& control_thread() noexcept { return thread_; }

  /// Sends Leave; afterwards the store can no longer be used. The host of the store stays until all have left.
  /// Blocking: until the deadline at most. @returns whether all that was done by then
  bool leave_blocking(Deadline deadline);

 private:
  struct LoopState;

  async::Task<void> join(async::EventLoop& loop, const ControlPlaneOptions& options, const HostIdentity& host,
                         Deadline deadline);
  void open_store(async::EventLoop& loop, std::vector<net::Listener> listeners, const ControlPlaneOptions& options,
                  const HostIdentity& host, Deadline join_deadline);
  async::Task<bool> leave_all(Deadline deadline);
  async::Task<void> wait_for_departures();
  async::Task<void> destroy_loop_state();
  void install_reporter();
  void close() noexcept;

  std::shared_ptr<FailureLatch> failure_;
  async::LoopThread thread_;
  std::shared_ptr<LoopHandle> loop_handle_;
  Membership membership_;
  std::weak_ptr<StoreClient> client_;
  std::unique_ptr<LoopState> loop_state_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS
#include "dtrain/rendezvous/control/control_plane_definitions.hpp"
#endif
