#pragma once
/// @file
/// rendezvous::ControlPlane: a rank's control thread, its session with the store, and the store if the rank hosts it.

#include <memory>
#include <utility>
#include <vector>

#include "dtrain/async/loop_thread.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/control/control_plane_options.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"

namespace DTRAIN_NAMESPACE::net {
class Listener;
}

namespace DTRAIN_NAMESPACE::rendezvous {

struct HostIdentity;
struct StoreAddress;

/// Owns the control thread. Its loop runs the rank's session with the store, and the store if the rank hosts it.
/// Threads: construction, leave_blocking and destruction from one thread; the rest from any.
class ControlPlane {
 public:
  /// Joins the job. A job of one rank that hosts its own store uses a port that the system chooses.
  /// Collective. Blocking: until all ranks have joined, at most `timeout` and a second for the store's answer.
  /// @throws as check_master_address, and the errors of StoreClient::join, listen_for_ranks and host_identity; nothing
  /// is left behind
  explicit ControlPlane(const ControlPlaneOptions& options,
                        std::shared_ptr<FailureLatch> failure = std::make_shared<FailureLatch>());
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  /// Without an earlier leave_blocking, the other ranks see this rank as lost. Blocking: at most a second, if this rank
  /// hosts the store, so that the other ranks receive the cause.
  ~ControlPlane();

  const Membership& membership() const noexcept { return membership_; }
  Store store() const { return {client_, thread_.handle()}; }
  const std::shared_ptr<FailureLatch>& failure() const noexcept { return failure_; }

  /// The control thread, for other parts of the rank's control plane.
  async::LoopThread& control_thread() noexcept { return thread_; }

  /// Sends Leave; afterwards the store cannot be used. The rank that hosts the store waits until all ranks have left.
  /// Blocking: at most until the deadline. @returns whether all of this was complete by then
  bool leave_blocking(Deadline deadline);

 private:
  struct LoopState;

  bool run_blocking(async::Task<bool> task, Deadline deadline, const char* doing);
  async::Task<bool> join(const ControlPlaneOptions& options, const HostIdentity& host, Deadline deadline);
  void open_store(std::vector<net::Listener> listeners, const ControlPlaneOptions& options, const HostIdentity& host,
                  Deadline join_deadline, StoreAddress& address);
  async::Task<bool> leave_all(Deadline deadline);
  async::Task<bool> end(bool ends_store);
  void install_reporter();
  void close() noexcept;

  std::shared_ptr<FailureLatch> failure_;
  async::LoopThread thread_;
  Membership membership_;
  std::weak_ptr<StoreClient> client_;
  std::unique_ptr<LoopState> loop_state_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS
#include "dtrain/rendezvous/control/control_plane_definitions.hpp"
#endif
