#pragma once
/// @file
/// Definitions of rendezvous::ControlPlane.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/local_address.hpp"
#include "dtrain/rendezvous/client/store_client.hpp"
#include "dtrain/rendezvous/control/control_plane.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"
#include "dtrain/rendezvous/server/port_conflict.hpp"
#include "dtrain/rendezvous/server/store_server.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// How long a rank that hosts the store waits for the other ranks to receive the cause.
inline constexpr std::chrono::milliseconds departure_timeout{1000};

/// What the store learns about this rank. Provisional fields stay unset: the store computes them.
inline RankInfo rank_info(const ControlPlaneOptions& options, const HostIdentity& host) {
  const identity::ProcessIdentity& identity = options.identity;
  const auto certain = [&identity](const char* field, const std::optional<int>& value) {
    return identity.is_provisional(field) ? std::nullopt : value;
  };
  return {identity.rank,
          host.id,
          host.name,
          certain("local_rank", identity.local_rank),
          certain("local_world_size", identity.local_world_size),
          certain("node_rank", identity.node_rank),
          certain("node_count", identity.node_count),
          options.settings};
}

}  // namespace detail

/// The rank's session and, if it hosts the store, the server. Used by the loop's thread only, until it has ended.
struct ControlPlane::LoopState {
  std::optional<StoreServer> server;
  JobServer* job = nullptr;  ///< the server's
  StoreClient::Owner session;
};

DTRAIN_DEFINED ControlPlane::ControlPlane(const ControlPlaneOptions& options, std::shared_ptr<FailureLatch> failure)
    : failure_(std::move(failure)), loop_state_(std::make_unique<LoopState>()) {
  check_master_address(options);
  const HostIdentity host = host_identity(options.host_id);
  constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365 * 100);  // sums with it do not overflow
  const Deadline deadline = Deadline::after(std::min(options.timeout, longest));
  const auto form = [&](async::EventLoop& loop) { return join(loop, options, host, deadline); };
  try {
    thread_.run_blocking(form, with_grace(deadline), "joining the job");
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
  const auto leave = [&](async::EventLoop&) { return leave_all(deadline); };
  const bool left = thread_.run_blocking(leave, with_grace(deadline), "leaving the job");
  close();
  return left;
}

DTRAIN_DEFINED async::Task<void> ControlPlane::join(async::EventLoop& loop, const ControlPlaneOptions& options,
                                                    const HostIdentity& host, Deadline deadline) {
  Join request;
  const identity::ProcessIdentity& identity = options.identity;
  request.info = detail::rank_info(options, host);
  request.world_size = identity.world_size;
  request.job = identity.job.value_or("");
  request.origin = options.origin;
  request.opens_store = options.hosts_store;
  const bool alone = identity.world_size == 1 && options.hosts_store;
  StoreAddress address;
  address.host = alone ? "127.0.0.1" : identity.master_addr.value_or("127.0.0.1");
  address.port = static_cast<std::uint16_t>(alone ? 0 : identity.master_port.value_or(identity::default_master_port));
  address.ports = alone ? std::uint16_t{1} : options.master_ports;
  address.attempt = static_cast<std::uint64_t>(identity.attempt);
  address.secret = options.secret;
  if (options.hosts_store) {
    const ListenOptions listen_options{options.interface, options.secret.has_value()};
    std::vector<net::Listener> listeners;
    if (alone) {
      listeners.push_back(net::Listener::bind_loopback(loop, 0));
    } else {
      listeners = co_await listen_or_query_holder(loop, address, listen_options, request, deadline);
    }
    const net::SocketAddress bound = listeners.front().local();
    address.host = bound.is_any() ? "localhost" : bound.host();
    address.port = bound.port();
    address.ports = 1;
    std::string place = alone ? std::string() : listens_at(listeners, identity.master_addr.value_or(""));
    open_store(loop, std::move(listeners), std::move(place), options, host, deadline);
  }
  try {
    loop_state_->session = co_await StoreClient::join(loop, address, std::move(request), failure_, deadline);
  } catch (const std::exception& error) {
    if (loop_state_->server) {  // the other ranks receive the cause before the store ends
      loop_state_->job->post_failure(Cause{CauseKind::exception, identity.rank, host.name, error.what()});
    }
    throw;
  }
  membership_ = loop_state_->session->membership();
  membership_.named_address = options.interface ? net::local_address_named(*options.interface) : std::string();
  client_ = loop_state_->session->weak_from_this();
}

DTRAIN_DEFINED void ControlPlane::open_store(async::EventLoop& loop, std::vector<net::Listener> listeners,
                                             std::string place, const ControlPlaneOptions& options,
                                             const HostIdentity& host, Deadline join_deadline) {
  loop_state_->server.emplace(loop, std::move(listeners), ServerOptions{options.secret, options.limits});
  StoreJobOptions job;
  job.world_size = options.identity.world_size;
  job.attempt = static_cast<std::uint64_t>(options.identity.attempt);
  job.job = options.identity.job.value_or("");
  job.owner = format_text("rank {} on host {}", {options.identity.rank, host.name});
  job.opener = StoreOpener{::getpid(), host.id, options.origin, std::move(place)};
  job.join_deadline = join_deadline;
  loop_state_->job = &loop_state_->server->open(std::move(job));
}

DTRAIN_DEFINED async::Task<bool> ControlPlane::leave_all(Deadline deadline) {
  bool left = loop_state_->session != nullptr;
  if (loop_state_->session != nullptr) {
    left = co_await loop_state_->session->leave(deadline);
  }
  if (loop_state_->server) {
    const bool all = co_await loop_state_->job->all_left(deadline);
    left = left && all;
  }
  co_return left;
}

/// Ends the session; if this rank hosts the store, the other ranks get time to receive the cause.
DTRAIN_DEFINED async::Task<void> ControlPlane::wait_for_departures() {
  loop_state_->session.reset();
  if (loop_state_->server) {
    co_await loop_state_->job->all_left(Deadline::after(detail::departure_timeout));
  }
}

DTRAIN_DEFINED async::Task<void> ControlPlane::destroy_loop_state() {
  loop_state_->session.reset();
  loop_state_->server.reset();
  co_return;
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
  const auto first = [this](async::EventLoop&) { return wait_for_departures(); };
  const auto then = [this](async::EventLoop&) { return destroy_loop_state(); };
  for (const bool last : {false, true}) {
    try {
      const Deadline deadline = with_grace(Deadline::after(detail::departure_timeout));
      last ? thread_.run_blocking(then, deadline, "closing") : thread_.run_blocking(first, deadline, "closing");
    } catch (...) {  // the loop has ended, and with it every task
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
