#pragma once
/// @file
/// rendezvous::ControlPlane of a RankContext: control thread, session with the job's store, and on its host the store.
/// ControlPlaneOptions: identity and settings of a joining rank.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/loop_handle.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"
#include "dtrain/rendezvous/membership/origin.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"

namespace DTRAIN_NAMESPACE::net {
class Listener;
}

namespace DTRAIN_NAMESPACE::rendezvous {

/// A value that refers to no other object.
struct ControlPlaneOptions {
  DTRAIN_MEMBERS_DEFINED_APART(ControlPlaneOptions);

  identity::ProcessIdentity identity{};
  bool hosts_store = false;  ///< this rank opens the store at the master address
  /// Number of ports from master_port on; the store listens at the first free one. More than 1 requires a job name:
  /// ranks recognise their store by it.
  std::uint16_t master_ports = 1;
  std::optional<std::string> host_id{};     ///< DTRAIN_HOST_ID
  std::optional<std::string> interface {};  ///< DTRAIN_INTERFACE: address of this rank, and of a store that it hosts
  std::optional<Secret> secret{};           ///< the secret of the job, if it has one
  Origin origin{};                          ///< further facts that distinguish the job from others
  std::string settings{};                   ///< must be equal on all ranks (membership/membership.hpp)
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);  ///< bound of the rendezvous, and of a collective
  /// How long leave_blocking() waits for the other ranks until a warning in the log names them.
  std::chrono::milliseconds notice_after = std::chrono::seconds(10);
  Limits limits{};
};

/// @throws Error (identity) for several ranks without an address of the store, or with one that this rank cannot reach
void check_master_address(const ControlPlaneOptions& options);

struct HostIdentity;
struct RankStatus;
struct StoreAddress;
class JobServer;
class StoreServer;

/// Owns the control thread. Its loop runs the rank's session with the store, and the store if the rank hosts it.
/// Threads: construction, leave_blocking and destruction from one thread; the rest from any.
class ControlPlane {
 public:
  /// Joins the job. A job of one rank that hosts its own store uses a port that the system chooses.
  /// Collective. Blocking: until all ranks have joined, at most `timeout` and a second for the store's answer.
  /// @throws as check_master_address, and the errors of StoreClient::join, listen_for_ranks and host_identity; nothing
  /// remains of it
  explicit ControlPlane(const ControlPlaneOptions& options,
                        std::shared_ptr<FailureLatch> failure = std::make_shared<FailureLatch>());
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  /// Without an earlier leave_blocking, this rank counts as lost. Blocking: at most a second, if this rank hosts the
  /// store, so that the other ranks receive the cause.
  ~ControlPlane();

  const Membership& membership() const noexcept { return membership_; }
  Store store() const { return {client_, thread_.handle()}; }
  const std::shared_ptr<FailureLatch>& failure() const noexcept { return failure_; }

  /// From now on the store gets what `read` returns, which the control thread calls about once a second. Lifetime: what
  /// it refers to outlives this object. Blocking: no.
  void send_statuses(std::function<RankStatus()> read);

  /// The control thread, for other parts of the rank's control plane.
  async::LoopThread& control_thread() noexcept { return thread_; }

  /// Sends Leave; afterwards the store cannot be used. The rank that hosts the store waits until all ranks have left.
  /// Blocking: at most until the deadline. @returns whether all of this was complete by then
  bool leave_blocking(Deadline deadline);

  /// Ends the session without leaving, as the destructor.
  void close() noexcept;

  /// close(), and ends the control thread. Later calls of the store throw.
  void end() noexcept {
    close();
    thread_.end();
  }

 private:
  bool run_blocking(async::Task<bool> task, Deadline deadline, const char* doing);
  async::Task<bool> join(const ControlPlaneOptions& options, const HostIdentity& host, Deadline deadline);
  void open_store(std::vector<net::Listener> listeners, const ControlPlaneOptions& options, const HostIdentity& host,
                  Deadline join_deadline, StoreAddress& address);
  async::Task<bool> leave_all(Deadline deadline);
  async::Task<bool> end_session(bool ends_store);
  void install_reporter();

  std::shared_ptr<FailureLatch> failure_;
  const std::chrono::milliseconds notice_after_;
  async::LoopThread thread_;
  Membership membership_;
  std::weak_ptr<StoreClient> client_;
  /// @name Used by the control thread only, until it has ended
  /// @{
  std::unique_ptr<StoreServer> server_;   ///< the store, if this rank hosts it
  JobServer* job_ = nullptr;              ///< the server's
  std::shared_ptr<StoreClient> session_;  ///< StoreClient::Owner
  bool has_joined_ = false;               ///< also after the session's end
  /// @}
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS

#include <unistd.h>

#include <algorithm>
#include <exception>

#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/interfaces.hpp"
#include "dtrain/net/socket_address.hpp"
#include "dtrain/rendezvous/client/store_client.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/rendezvous/server/listen.hpp"
#include "dtrain/rendezvous/server/store_server.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

DTRAIN_DEFINE_MEMBERS(ControlPlaneOptions);

DTRAIN_DEFINED void check_master_address(const ControlPlaneOptions& options) {
  const identity::ProcessIdentity& identity = options.identity;
  if (identity.world_size > 1 && (!identity.master_addr || !identity.master_port)) {
    throw_error(
        Errc::identity,
        "rank {} of {} does not know the address of the job's store; set MASTER_ADDR and MASTER_PORT to an address "
        "of rank 0's host and a free port there",
        {identity.rank, identity.world_size});
  }
  const bool is_elsewhere = !identity.is_provisional("node_rank") && identity.node_rank.value_or(0) != 0;
  const bool may_be_here = options.secret || options.interface;  // else rank 0 does not listen at 0.0.0.0
  if (!options.hosts_store && net::is_any_host(identity.master_addr.value_or("")) && (is_elsewhere || !may_be_here)) {
    throw_error(Errc::identity,
                "rank {} cannot connect to the job's store at {}, which means every interface of rank 0's host; set "
                "MASTER_ADDR to an address of that host",
                {identity.rank, *identity.master_addr});
  }
}

namespace detail {

/// How long a rank that hosts the store waits for the other ranks to receive the cause.
inline constexpr std::chrono::milliseconds departure_timeout{1000};

/// Provisional fields stay unset: the store computes them.
inline Join join_request(const ControlPlaneOptions& options, const HostIdentity& host) {
  const identity::ProcessIdentity& identity = options.identity;
  const auto certain = [&identity](const char* field, const std::optional<int>& value) {
    return identity.is_provisional(field) ? std::nullopt : value;
  };
  Join request;
  request.info.rank = identity.rank;
  request.info.host_id = host.id;
  request.info.host = host.name;
  request.info.local_rank = certain("local_rank", identity.local_rank);
  request.info.local_world_size = certain("local_world_size", identity.local_world_size);
  request.info.node_rank = certain("node_rank", identity.node_rank);
  request.info.node_count = certain("node_count", identity.node_count);
  request.info.settings = options.settings;
  request.world_size = identity.world_size;
  request.job = identity.job.value_or("");
  request.origin = options.origin;
  request.opens_store = options.hosts_store;
  return request;
}

/// False only if the launcher says that all ranks run on one host.
inline bool may_span_hosts(const identity::ProcessIdentity& identity) {
  return identity.node_count ? *identity.node_count > 1 : identity.local_world_size != identity.world_size;
}

/// @param is_alone whether the job has only this rank, at a port that the system chooses
inline StoreAddress store_address(const ControlPlaneOptions& options, bool is_alone) {
  const identity::ProcessIdentity& identity = options.identity;
  StoreAddress address;
  address.host = is_alone ? "127.0.0.1" : identity.master_addr.value_or("127.0.0.1");
  address.port =
      static_cast<std::uint16_t>(is_alone ? 0 : identity.master_port.value_or(identity::default_master_port));
  address.ports = is_alone ? std::uint16_t{1} : options.master_ports;
  address.attempt = static_cast<std::uint64_t>(identity.attempt);
  address.secret = options.secret;
  return address;
}

}  // namespace detail

DTRAIN_DEFINED ControlPlane::ControlPlane(const ControlPlaneOptions& options, std::shared_ptr<FailureLatch> failure)
    : failure_(std::move(failure)), notice_after_(options.notice_after) {
  check_master_address(options);
  const HostIdentity host = host_identity(options.host_id);
  constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365 * 100);  // sums with it do not overflow
  const Deadline deadline = Deadline::after(std::min(options.timeout, longest));
  try {
    run_blocking(join(options, host, deadline), deadline, "joining the job");
  } catch (...) {
    close();
    throw;
  }
  install_reporter();
}

DTRAIN_DEFINED ControlPlane::~ControlPlane() {
  close();
}

DTRAIN_DEFINED bool ControlPlane::leave_blocking(Deadline deadline) {
  failure_->set_reporter({});
  const bool left = run_blocking(leave_all(deadline), deadline, "leaving the job");
  close();
  return left;
}

DTRAIN_DEFINED void ControlPlane::send_statuses(std::function<RankStatus()> read) {
  thread_.handle()->post([weak_client = client_, read = std::move(read)] {
    if (const std::shared_ptr<StoreClient> client = weak_client.lock()) client->send_statuses(read);
  });
}

/// Runs a coroutine on the control thread. Blocking: until it has ended, at most the deadline and 3 s more.
DTRAIN_DEFINED bool ControlPlane::run_blocking(async::Task<bool> task, Deadline deadline, const char* doing) {
  const auto start = [&task](async::EventLoop&) { return std::move(task); };
  return thread_.run_blocking(start, with_grace(deadline), doing);
}

DTRAIN_DEFINED async::Task<bool> ControlPlane::join(const ControlPlaneOptions& options, const HostIdentity& host,
                                                    Deadline deadline) {
  async::EventLoop& loop = thread_.loop();
  const bool is_alone = options.identity.world_size == 1 && options.hosts_store;
  Join request = detail::join_request(options, host);
  StoreAddress address = detail::store_address(options, is_alone);
  if (options.hosts_store) {
    std::vector<net::Listener> listeners;
    if (is_alone) {
      listeners.push_back(net::Listener::bind_loopback(loop, 0));
    } else {
      const ListenOptions listen_options{options.interface, options.secret.has_value(),
                                         detail::may_span_hosts(options.identity)};
      async::Task<std::vector<net::Listener>> listening =
          listen_or_query_holder(loop, address, listen_options, request, deadline);
      listeners = co_await std::move(listening);
    }
    open_store(std::move(listeners), options, host, deadline, address);
  }
  try {
    async::Task<StoreClient::Owner> joining =
        StoreClient::join(loop, std::move(address), std::move(request), failure_, deadline);
    session_ = co_await std::move(joining);
    has_joined_ = true;
  } catch (const std::exception& error) {
    if (server_) {  // the other ranks receive the cause before the store ends
      job_->post_failure(Cause{CauseKind::exception, options.identity.rank, host.name, error.what()});
    }
    throw;
  }
  membership_ = session_->membership();
  membership_.named_address = options.interface ? net::local_address_named(*options.interface) : std::string();
  client_ = session_->weak_from_this();
  co_return true;
}

/// @param address becomes that of the store
DTRAIN_DEFINED void ControlPlane::open_store(std::vector<net::Listener> listeners, const ControlPlaneOptions& options,
                                             const HostIdentity& host, Deadline join_deadline, StoreAddress& address) {
  const net::SocketAddress bound = listeners.front().local();
  address.host = bound.is_any() ? "localhost" : bound.host();
  address.port = bound.port();
  address.ports = 1;
  StoreJobOptions job;
  job.world_size = options.identity.world_size;
  job.attempt = address.attempt;
  job.job = options.identity.job.value_or("");
  job.owner = format_text("rank {} on host {}", {options.identity.rank, host.name});
  job.opener.process = ::getpid();
  job.opener.host_id = host.id;
  job.opener.origin = options.origin;
  if (job.world_size > 1) {
    job.opener.listens_at = listens_at("rank 0", listeners, options.identity.master_addr.value_or(""));
  }
  job.join_deadline = join_deadline;
  job.on_failure = [this](const Cause& cause) {
    if (!has_joined_) {  // it is joining, which cannot succeed any more
      failure_->set(cause);
    }
  };
  server_ = std::make_unique<StoreServer>(thread_.loop(), std::move(listeners),
                                          ServerOptions{options.secret, options.limits});
  job_ = &server_->open(std::move(job));
}

DTRAIN_DEFINED async::Task<bool> ControlPlane::leave_all(Deadline deadline) {
  bool left = session_ != nullptr;
  if (session_ != nullptr) {
    left = co_await session_->leave(deadline);
  }
  if (server_) {
    bool all = co_await job_->all_left(earlier(deadline, Deadline::after(notice_after_)));
    if (!all && !deadline.passed()) {
      const std::vector<int> present = job_->state().rank_table().ranks_in(RankTable::RankState::joined);
      log(LogLevel::warning,
          format_text("leaving the job: this rank serves the job's store, and waits until {} left",
                      {present.size() == 1 ? rank_list(present) + " has" : rank_list(present) + " have"}));
      all = co_await job_->all_left(deadline);
    }
    left = left && all;
  }
  co_return left;
}

/// Ends the session; if this rank hosts the store, the other ranks get time to receive the cause, or the store ends.
DTRAIN_DEFINED async::Task<bool> ControlPlane::end_session(bool ends_store) {
  while (session_ != nullptr && !ends_store && session_->is_reporting()) {  // closing would drop unsent reports
    co_await thread_.loop().sleep_for(std::chrono::milliseconds(1));
  }
  session_.reset();
  if (ends_store) {
    server_.reset();
  } else if (server_ && job_ != nullptr) {  // null where opening the store failed
    co_await job_->all_left(Deadline::after(detail::departure_timeout));
  }
  co_return true;
}

/// Sends reports to the store; without a session, a report sets this rank's own latch.
DTRAIN_DEFINED void ControlPlane::install_reporter() {
  const std::weak_ptr<FailureLatch> latch = failure_;
  failure_->set_reporter([loop_handle = thread_.handle(), weak_client = client_, latch](const Cause& cause) {
    const bool posted = loop_handle->post([weak_client, latch, cause] {
      if (const std::shared_ptr<StoreClient> client = weak_client.lock()) {
        client->report(cause);
      } else if (const std::shared_ptr<FailureLatch> own = latch.lock()) {
        own->set(cause);
      }
    });
    const std::shared_ptr<FailureLatch> own = latch.lock();
    if (!posted && own) {
      own->set(cause);
    }
  });
}

DTRAIN_DEFINED void ControlPlane::close() noexcept {
  failure_->set_reporter({});
  for (const bool ends_store : {false, true}) {
    try {
      run_blocking(end_session(ends_store), Deadline::after(detail::departure_timeout), "closing");
    } catch (...) {  // the loop has ended, and with it every task
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

#endif  // DTRAIN_DEFINITIONS
