#pragma once
/// @file
/// The functions of rendezvous::Participant.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/net/own_address.hpp"
#include "dtrain/rendezvous/control.hpp"
#include "dtrain/rendezvous/host_identity.hpp"
#include "dtrain/rendezvous/participant.hpp"
#include "dtrain/rendezvous/server.hpp"
#include "dtrain/rendezvous/session.hpp"
#include "dtrain/rendezvous/taken_port.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// How long a rank that hosts the store stays for the others to hear why it goes.
inline constexpr std::chrono::milliseconds farewell{1000};

}  // namespace detail

/// The rank's end of its session and, where it hosts the store, the other ones: the loop's thread only, until it has
/// ended.
struct Participant::Ends {
  std::optional<Server> server;
  ServedJob* job = nullptr;  ///< the server's
  std::unique_ptr<Session> session;
};

DTRAIN_DEFINED Participant::Participant(const ParticipantOptions& options, std::shared_ptr<FailureLatch> failure)
    : failure_(std::move(failure)), control_(std::make_shared<Control>(thread_)), ends_(std::make_unique<Ends>()) {
  const HostIdentity host = host_identity(options.host_id);
  const Deadline deadline = Deadline::after(options.timeout);
  const auto form = [&](async::EventLoop& loop) { return join(loop, options, host, deadline); };
  try {
    thread_.run_blocking(form, a_moment_after(deadline), "joining the job");
  } catch (...) {
    close();
    throw;
  }
  install_reporter();
}

DTRAIN_DEFINED Participant::~Participant() {
  close();
}

DTRAIN_DEFINED bool Participant::leave_blocking(Deadline deadline) {
  failure_->set_reporter({});
  const auto leave = [&](async::EventLoop&) { return leave_all(deadline); };
  const bool left = thread_.run_blocking(leave, a_moment_after(deadline), "leaving the job");
  close();
  return left;
}

DTRAIN_DEFINED async::Task<void> Participant::join(async::EventLoop& loop, const ParticipantOptions& options,
                                                   const HostIdentity& host, Deadline deadline) {
  JoinRequest request;
  request.facts = RankFacts{
      options.rank,       host.id,       host.name, options.local_rank, options.local_world_size, options.node_rank,
      options.node_count, options.agreed};
  request.world_size = options.world_size;
  request.job = options.job;
  request.origin = options.origin;
  request.opens_store = options.host_store;
  const bool alone = options.world_size == 1 && options.host_store;
  Address address;
  address.host = alone ? "127.0.0.1" : options.master_host;
  address.port = alone ? std::uint16_t{0} : options.master_port;
  address.ports = alone ? std::uint16_t{1} : options.master_ports;
  address.generation = options.generation;
  address.secret = options.secret;
  if (options.host_store) {
    const ListenRules rules{options.interface, options.secret.has_value()};
    std::vector<net::Listener> listeners;
    if (alone) {
      listeners.push_back(net::Listener::bind_loopback(loop, 0));
    } else {
      listeners = co_await listen_or_ask(loop, address, rules, request, deadline);
    }
    const net::Endpoint bound = listeners.front().local();
    address.host = bound.is_any() ? "localhost" : bound.host();
    address.port = bound.port();
    address.ports = 1;
    open_store(loop, std::move(listeners), options, host, deadline);
  }
  try {
    ends_->session = co_await Session::join(loop, address, std::move(request), failure_, deadline);
  } catch (const std::exception& error) {
    if (ends_->server) {  // the others are to hear why their store goes away
      ends_->job->post_failure(Cause{CauseKind::exception, options.rank, host.name, error.what()});
    }
    throw;
  }
  membership_ = ends_->session->membership();
  membership_.named_address = options.interface ? net::own_address_named(*options.interface) : std::string();
  exchange_ = ends_->session->exchange();
}

DTRAIN_DEFINED void Participant::open_store(async::EventLoop& loop, std::vector<net::Listener> listeners,
                                            const ParticipantOptions& options, const HostIdentity& host,
                                            Deadline formation) {
  ends_->server.emplace(loop, std::move(listeners), ServerOptions{options.secret, options.limits});
  JobOptions job;
  job.world_size = options.world_size;
  job.generation = options.generation;
  job.job = options.job;
  job.owner = "rank " + std::to_string(options.rank) + " on host " + host.name;
  job.opener = StoreOpener{::getpid(), host.id, options.origin};
  job.formation = formation;
  ends_->job = &ends_->server->open(std::move(job));
}

DTRAIN_DEFINED async::Task<bool> Participant::leave_all(Deadline deadline) {
  bool left = ends_->session != nullptr;
  if (ends_->session != nullptr) {
    left = co_await ends_->session->leave(deadline);
  }
  if (ends_->server) {
    const bool all = co_await ends_->job->all_left(deadline);
    left = left && all;
  }
  co_return left;
}

/// Ends the session, and lets the others of a store that this rank hosts hear of it.
DTRAIN_DEFINED async::Task<void> Participant::bid_farewell() {
  ends_->session.reset();
  if (ends_->server) {
    co_await ends_->job->all_left(Deadline::after(detail::farewell));
  }
}

DTRAIN_DEFINED async::Task<void> Participant::drop() {
  ends_->session.reset();
  ends_->server.reset();
  co_return;
}

/// A report goes to the store; once there is no session any more, nobody else is to be told.
DTRAIN_DEFINED void Participant::install_reporter() {
  const std::weak_ptr<FailureLatch> latch = failure_;
  failure_->set_reporter([control = control_, handle = exchange_, latch](const Cause& cause) {
    const bool posted = control->post([handle, latch, cause] {
      if (const std::shared_ptr<Exchange> exchange = handle.lock()) {
        exchange->report(cause);
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

DTRAIN_DEFINED void Participant::close() noexcept {
  failure_->set_reporter({});
  const auto first = [this](async::EventLoop&) { return bid_farewell(); };
  const auto then = [this](async::EventLoop&) { return drop(); };
  for (const bool last : {false, true}) {
    try {
      const Deadline deadline = a_moment_after(Deadline::after(detail::farewell));
      last ? thread_.run_blocking(then, deadline, "closing") : thread_.run_blocking(first, deadline, "closing");
    } catch (...) {  // the loop has ended, and with it every task
    }
  }
  control_->close();
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
