#pragma once
/// @file
/// rendezvous::Participant: a rank's whole control plane, for callers that block.

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/net/own_address.hpp"
#include "dtrain/rendezvous/host_identity.hpp"
#include "dtrain/rendezvous/listen.hpp"
#include "dtrain/rendezvous/server.hpp"
#include "dtrain/rendezvous/session.hpp"
#include "dtrain/rendezvous/store.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

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
  std::string job{};                        ///< what the launcher calls it
  std::string agreed{};                     ///< what must be the same on all ranks (agreed_terms.hpp)
  Limits limits{};
};

/// Owns a thread with a loop, on which the rank's session lives, and the store where this rank hosts it.
/// Threads: construction, leave_blocking and destruction from one thread; the rest from any.
class Participant {
 public:
  /// Joins the job. A job of one rank that hosts its own store takes a port that the system chooses.
  /// Collective, blocking: until all ranks have joined, at most `timeout`.
  /// @throws what Session::join, listen_for_ranks and host_identity throw, with nothing left behind
  explicit Participant(const ParticipantOptions& options,
                       std::shared_ptr<FailureLatch> failure = std::make_shared<FailureLatch>())
      : failure_(std::move(failure)), control_(std::make_shared<Control>(thread_)) {
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
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  /// Without leave_blocking before it, the others see the loss of this rank. Blocking: a second at most, where this
  /// rank hosts the store, so that the others hear the cause from it.
  ~Participant() { close(); }

  const Membership& membership() const noexcept { return membership_; }
  Store store() const { return {exchange_, control_}; }
  const std::shared_ptr<FailureLatch>& failure() const noexcept { return failure_; }

  /// The thread whose loop carries the session: for other parts of the rank's control plane.
  async::LoopThread& control_thread() noexcept { return thread_; }

  /// Says leave(ok); afterwards the store can no longer be used. The host of the store stays until all have left.
  /// Blocking: until the deadline at most. @returns whether all that was done by then
  bool leave_blocking(Deadline deadline) {
    failure_->set_reporter({});
    const auto leave = [&](async::EventLoop&) { return leave_all(deadline); };
    const bool left = thread_.run_blocking(leave, a_moment_after(deadline), "leaving the job");
    close();
    return left;
  }

 private:
  static constexpr std::chrono::milliseconds farewell{1000};

  async::Task<void> join(async::EventLoop& loop, const ParticipantOptions& options, const HostIdentity& host,
                         Deadline deadline) {
    JoinRequest request;
    request.facts = RankFacts{
        options.rank,       host.id,       host.name, options.local_rank, options.local_world_size, options.node_rank,
        options.node_count, options.agreed};
    request.world_size = options.world_size;
    request.job = options.job;
    const bool alone = options.world_size == 1 && options.host_store;
    Address address;
    address.host = alone ? "127.0.0.1" : options.master_host;
    address.port = alone ? std::uint16_t{0} : options.master_port;
    address.ports = alone ? std::uint16_t{1} : options.master_ports;
    address.generation = options.generation;
    address.secret = options.secret;
    if (options.host_store) {
      const ListenRules rules{alone ? std::nullopt : options.interface, options.secret.has_value()};
      std::vector<net::Listener> listeners = co_await listen_at_one_of(loop, address, deadline, rules);
      const net::Endpoint bound = listeners.front().local();
      address.host = bound.is_any() ? "localhost" : bound.host();
      address.port = bound.port();
      address.ports = 1;
      open_store(loop, std::move(listeners), options, host, deadline);
    }
    try {
      session_ = co_await Session::join(loop, address, std::move(request), failure_, deadline);
    } catch (const std::exception& error) {
      if (server_) {  // the others are to hear why their store goes away
        job_->post_failure(Cause{CauseKind::exception, options.rank, host.name, error.what()});
      }
      throw;
    }
    membership_ = session_->membership();
    membership_.named_address = options.interface ? net::own_address_named(*options.interface) : std::string();
    exchange_ = session_->exchange();
  }

  void open_store(async::EventLoop& loop, std::vector<net::Listener> listeners, const ParticipantOptions& options,
                  const HostIdentity& host, Deadline formation) {
    server_.emplace(loop, std::move(listeners), ServerOptions{options.secret, options.limits});
    JobOptions job;
    job.world_size = options.world_size;
    job.generation = options.generation;
    job.job = options.job;
    job.owner = "rank " + std::to_string(options.rank) + " on host " + host.name;
    job.formation = formation;
    job_ = &server_->open(std::move(job));
  }

  async::Task<bool> leave_all(Deadline deadline) {
    bool left = session_ != nullptr;
    if (session_ != nullptr) {
      left = co_await session_->leave(deadline);
    }
    if (server_) {
      const bool all = co_await job_->all_left(deadline);
      left = left && all;
    }
    co_return left;
  }

  /// Ends the session, and lets the others of a store that this rank hosts hear of it.
  async::Task<void> bid_farewell() {
    session_.reset();
    if (server_) {
      co_await job_->all_left(Deadline::after(farewell));
    }
  }

  async::Task<void> drop() {
    session_.reset();
    server_.reset();
    co_return;
  }

  /// A report goes to the store; once there is no session any more, nobody else is to be told.
  void install_reporter() {
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

  void close() noexcept {
    failure_->set_reporter({});
    const auto first = [this](async::EventLoop&) { return bid_farewell(); };
    const auto then = [this](async::EventLoop&) { return drop(); };
    for (const bool last : {false, true}) {
      try {
        const Deadline deadline = a_moment_after(Deadline::after(farewell));
        last ? thread_.run_blocking(then, deadline, "closing") : thread_.run_blocking(first, deadline, "closing");
      } catch (...) {  // the loop has ended, and with it every task
      }
    }
    control_->close();
  }

  std::shared_ptr<FailureLatch> failure_;
  async::LoopThread thread_;
  std::shared_ptr<Control> control_;
  Membership membership_;
  std::weak_ptr<Exchange> exchange_;
  /// The loop's thread only, until it has ended.
  std::optional<Server> server_;
  ServedJob* job_ = nullptr;  ///< the server's
  std::unique_ptr<Session> session_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
