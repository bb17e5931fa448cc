#pragma once
/// @file
/// SimulatedFormation: a store with an elastic job's formation, and workers that are connections only: they announce
/// themselves and take their ranks.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/async/events.hpp"
#include "dtrain/async/loop_handle.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/rendezvous/client/client_handshake.hpp"
#include "dtrain/rendezvous/formation/formation_server.hpp"
#include "dtrain/rendezvous/server/listen.hpp"

namespace bench {

namespace rendezvous = dtrain::rendezvous;

/// The store runs on one thread, all workers on another.
class SimulatedFormation {
 public:
  using Clock = dtrain::Deadline::Clock;

  /// Connects the workers and forms the first attempt.
  explicit SimulatedFormation(int workers) : workers_(static_cast<std::size_t>(workers)) {
    server_thread_.run_blocking([this](dtrain::async::EventLoop& loop) { return open(loop); }, soon(),
                                "opening a store");
    client_thread_.run_blocking([this](dtrain::async::EventLoop& loop) { return connect_all(loop); }, soon(),
                                "connecting simulated workers");
  }
  SimulatedFormation(const SimulatedFormation&) = delete;
  SimulatedFormation& operator=(const SimulatedFormation&) = delete;
  ~SimulatedFormation() {
    client_thread_.run_blocking([this](dtrain::async::EventLoop&) { return disconnect(); }, soon(), "disconnecting");
    server_thread_.run_blocking([this](dtrain::async::EventLoop&) { return close(); }, soon(), "closing a store");
  }

  /// The attempt fails after a commit, and every worker announces itself again.
  /// @returns the seconds from the last announcement to the last assignment
  double form_again() {
    return client_thread_.run_blocking([this](dtrain::async::EventLoop&) { return announce_all(); }, soon(),
                                       "forming an attempt");
  }

 private:
  static dtrain::Deadline soon() { return dtrain::Deadline::after(std::chrono::seconds(120)); }

  struct NoLauncher {
    void on_attempt(std::uint64_t, const std::vector<rendezvous::WorkerId>&) const {}
    void on_end() const {}
  };

  struct Worker final : rendezvous::SessionHandler {
    bool on_frame(std::span<const std::byte> frame) override { return owner->receive(*this, frame); }
    void on_disconnected(const std::string&) override {}

    SimulatedFormation* owner = nullptr;
    rendezvous::Announce announce;
    rendezvous::Assignment assignment{};
    std::shared_ptr<rendezvous::Session> session;
  };

  /// @name On the store's thread
  /// @{
  dtrain::async::Task<void> open(dtrain::async::EventLoop& loop) {
    rendezvous::Limits limits;
    limits.liveness = std::chrono::minutes(10);  // simulated workers send no heartbeats
    rendezvous::FormationOptions options;
    options.max_workers = static_cast<int>(workers_.size());
    store_ = std::make_unique<rendezvous::StoreServer>(loop, dtrain::net::Listener::bind_loopback(loop, 0),
                                                       rendezvous::ServerOptions{{}, limits});
    formation_ = std::make_unique<rendezvous::FormationServer<NoLauncher>>(
        loop, *store_, options, rendezvous::StoreJobOptions{}, limits, NoLauncher{});
    address_.host = "127.0.0.1";
    address_.port = store_->local().port();
    address_.role = rendezvous::ClientRole::worker;
    co_return;
  }
  dtrain::async::Task<void> close() {
    formation_.reset();
    store_.reset();
    co_return;
  }
  /// @}

  /// @name On the workers' thread
  /// @{
  dtrain::async::Task<void> connect_all(dtrain::async::EventLoop& loop) {
    all_assigned_.emplace(loop);
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      worker.owner = this;
      worker.announce.worker = {"host" + std::to_string(i / 8), static_cast<std::int64_t>(i + 1), i + 1};
      worker.announce.host = worker.announce.worker.host_id;
      worker.announce.settings = "kept state=all\n";
      dtrain::async::Task<dtrain::net::Connection> connecting =
          dtrain::net::connect_with_backoff(loop, address_.host, address_.port, soon());
      dtrain::net::Connection connection = co_await std::move(connecting);
      worker.session = std::make_shared<rendezvous::Session>(std::move(connection));
      dtrain::async::Task<rendezvous::HandshakeResult> shaking = rendezvous::handshake(
          *worker.session, address_, rendezvous::encode(worker.announce), "joining", soon(), soon());
      const rendezvous::HandshakeResult result = co_await std::move(shaking);
      if (!std::holds_alternative<rendezvous::Accepted>(result)) {
        throw dtrain::Error(dtrain::Errc::protocol, "a simulated worker was not accepted");
      }
      worker.session->start(worker, {});
    }
    co_await all_assigned_->wait(soon());
    require_all_assigned();
  }

  dtrain::async::Task<double> announce_all() {
    assigned_ = 0;
    all_assigned_->reset();
    static_cast<void>(workers_.front().session->send(rendezvous::encode(rendezvous::Committed{attempt_, {}})));
    for (Worker& each : workers_) {
      each.announce.job = each.assignment.job;
      each.announce.progress = {each.assignment.attempt, each.assignment.source.steps + 1};
      if (&each != &workers_.back()) {
        static_cast<void>(each.session->send(rendezvous::encode(each.announce)));
      }
    }
    co_await client_thread_.loop().sleep_for(std::chrono::milliseconds(300));  // the store knows all of them
    const Clock::time_point begin = Clock::now();
    static_cast<void>(workers_.back().session->send(rendezvous::encode(workers_.back().announce)));
    co_await all_assigned_->wait(soon());
    require_all_assigned();
    co_return std::chrono::duration<double>(last_assigned_at_ - begin).count();
  }

  dtrain::async::Task<void> disconnect() {
    for (Worker& each : workers_) {
      if (each.session != nullptr) each.session->close();
    }
    co_return;
  }

  bool receive(Worker& worker, std::span<const std::byte> frame) {
    const std::optional<rendezvous::ToWorker> message = rendezvous::decode<rendezvous::ToWorker>(frame);
    const auto* const assignment = message ? std::get_if<rendezvous::Assignment>(&*message) : nullptr;
    if (assignment == nullptr) return false;
    worker.assignment = *assignment;
    attempt_ = assignment->attempt;
    last_assigned_at_ = Clock::now();
    if (++assigned_ == workers_.size()) all_assigned_->set();
    return true;
  }

  void require_all_assigned() const {
    if (assigned_ != workers_.size()) {
      throw dtrain::Error(dtrain::Errc::timeout,
                          std::to_string(workers_.size() - assigned_) + " simulated workers have no rank");
    }
  }
  /// @}

  rendezvous::StoreAddress address_;
  std::unique_ptr<rendezvous::StoreServer> store_;
  std::unique_ptr<rendezvous::FormationServer<NoLauncher>> formation_;
  std::vector<Worker> workers_;
  std::optional<dtrain::async::ManualResetEvent> all_assigned_;
  std::size_t assigned_ = 0;
  std::uint64_t attempt_ = 0;
  Clock::time_point last_assigned_at_{};
  dtrain::async::LoopThread server_thread_;
  dtrain::async::LoopThread client_thread_;
};

}  // namespace bench
