#pragma once
/// @file
/// rendezvous::ControlPlane: a rank's control thread, its session with the store, and the store if the rank hosts it.

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

/// The rank's numbers, as its launcher states them, and the address of its job's store.
struct ControlPlaneOptions {
  int rank = 0;
  int world_size = 1;
  /// @name Values that the launcher states as certain. A wrong value is an error; a guess stays empty.
  /// @{
  std::optional<int> local_rank{};
  std::optional<int> local_world_size{};
  std::optional<int> node_rank{};
  std::optional<int> node_count{};
  /// @}
  std::string master_host = "127.0.0.1";
  std::uint16_t master_port = 0;
  /// Number of ports from master_port on; the store listens at the first free one. More than 1 requires `job`, by which
  /// ranks recognise their store.
  std::uint16_t master_ports = 1;
  bool host_store = false;  ///< this rank opens the store at master_host:master_port
  std::chrono::milliseconds timeout{600000};
  std::optional<std::string> host_id{};     ///< DTRAIN_HOST_ID
  std::optional<std::string> interface {};  ///< DTRAIN_INTERFACE: address of this rank, and of a store that it hosts
  std::optional<Secret> secret{};           ///< of the job, if it has one
  std::uint64_t attempt = 0;                ///< counted from 0
  std::string job{};                        ///< name of the job; empty if it has none
  Origin origin{};                          ///< further facts that distinguish the job from others
  std::string settings{};                   ///< must be equal on all ranks (job_settings.hpp)
  Limits limits{};
};

/// Owns the control thread. Its loop runs the rank's session with the store, and the store if the rank hosts it.
/// Threads: construction, leave_blocking and destruction from one thread; the rest from any.
class ControlPlane {
 public:
  /// Joins the job. A job of one rank that hosts its own store uses a port that the system chooses.
  /// Collective. Blocking: until all ranks have joined, at most `timeout` and a second for the store's answer.
  /// @throws the errors of StoreClient::join, listen_for_ranks and host_identity; nothing is left behind
  explicit ControlPlane(const ControlPlaneOptions& options,
                        std::shared_ptr<FailureLatch> failure = std::make_shared<FailureLatch>());
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  /// Without an earlier leave_blocking, the other ranks see this rank as lost. Blocking: at most a second, if this rank
  /// hosts the store, so that the other ranks receive the cause.
  ~ControlPlane();

  const Membership& membership() const noexcept { return membership_; }
  Store store() const { return {client_, loop_handle_}; }
  const std::shared_ptr<FailureLatch>& failure() const noexcept { return failure_; }

  /// The control thread, for other parts of the rank's control plane.
  async::LoopThread& control_thread() noexcept { return thread_; }

  /// Sends Leave; afterwards the store cannot be used. The rank that hosts the store waits until all ranks have left.
  /// Blocking: at most until the deadline. @returns whether all of this was complete by then
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
