#pragma once
/// @file
/// Formation server: the connections of an elastic job's workers, their liveness, and the attempts that FormationState
/// opens in the store. run_elastic_job() of the launcher owns it.

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/async/events.hpp"
#include "dtrain/core/crypto.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/formation/formation_state.hpp"
#include "dtrain/rendezvous/server/store_server.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Callbacks of a formation to its launcher. Called on the loop's thread; none may call the server back.
struct FormationCallbacks {
  std::function<void(std::uint64_t attempt, const std::vector<WorkerId>& ranks)> on_attempt =
      [](std::uint64_t, const std::vector<WorkerId>&) {};
  std::function<void(const Cause&)> on_failure = [](const Cause&) {};  ///< an attempt has failed
  std::function<void(const Cause*)> on_end = [](const Cause*) {};      ///< FormationSink::on_end
};

/// Lifetime: the loop and the store outlive it. Destroying it closes every connection. Threads: the loop's.
class FormationServer final : public WorkerConnections, private FormationSink {
 public:
  /// @param job of each attempt; this object sets world size, attempt, deadline and callbacks
  FormationServer(async::EventLoop& loop, StoreServer& store, const FormationOptions& options, StoreJobOptions job,
                  const Limits& limits, FormationCallbacks callbacks)
      : loop_(loop),
        store_(store),
        options_(options),
        job_options_(std::move(job)),
        limits_(limits),
        callbacks_(std::move(callbacks)),
        state_(*this, options, random_number()),
        changed_(loop),
        watch_task_(loop.spawn(watch())),
        liveness_task_(loop.spawn(watch_liveness())) {
    store_.set_workers(this);
  }
  FormationServer(const FormationServer&) = delete;
  FormationServer& operator=(const FormationServer&) = delete;
  ~FormationServer() { store_.set_workers(nullptr); }

  const FormationState& state() const noexcept { return state_; }
  const FormationOptions& options() const noexcept { return options_; }
  std::size_t connections() const noexcept { return connections_.size(); }

  /// @name Events of the launcher, as those of FormationState
  /// @{
  void process_ended(const std::string& host_id, std::int64_t process, int exit_code, const std::string& how) {
    state_.process_ended(host_id, process, exit_code, how, now());
    changed_.set();
  }
  void set_running_workers(int count) {
    state_.set_running_workers(count, now());
    changed_.set();
  }
  /// @}

  /// @name For the handshake of StoreServer
  /// @{
  Admission admit(std::span<const std::byte> frame, const std::shared_ptr<Session>& session) override {
    const std::optional<Announce> announce = decode_announce(frame);
    if (!announce) {
      return {};
    }
    const ConnectionId id = ++last_id_;
    connections_.emplace(id, std::make_unique<WorkerSession>(*this, id, session));
    const std::optional<Refused> refused = state_.announce(id, *announce, now());
    changed_.set();
    if (refused) {
      connections_.erase(id);
      return {std::nullopt, encode(*refused)};
    }
    Accepted accepted;
    accepted.heartbeat_ms = wire_milliseconds(heartbeat());
    accepted.liveness_ms = wire_milliseconds(limits_.liveness);
    return {id, encode(accepted)};
  }
  void start(SessionId id, std::span<const std::byte> accepted) override {
    WorkerSession& connection = *connections_.at(id);
    connection.session->start(connection, {limits_.outgoing_bytes, limits_.send, true, heartbeat()}, accepted);
  }
  /// @}

 private:
  struct WorkerSession final : SessionHandler {
    WorkerSession(FormationServer& server, ConnectionId number, std::shared_ptr<Session> connected)
        : owner(server), id(number), session(std::move(connected)) {}
    WorkerSession(const WorkerSession&) = delete;
    WorkerSession& operator=(const WorkerSession&) = delete;
    ~WorkerSession() { session->close(); }

    bool on_frame(std::span<const std::byte> frame) override { return owner.receive(id, frame); }
    void on_disconnected(const std::string&) override { owner.disconnected(id); }

    FormationServer& owner;
    ConnectionId id;
    std::shared_ptr<Session> session;
  };

  /// Event of an attempt's JobServer. It is handled in the loop's next turn, since its callbacks may open no job.
  struct AttemptEvent {
    std::uint64_t attempt = 0;
    std::optional<Cause> failure{};  ///< nullopt: all ranks have joined
  };

  static FormationState::Instant now() { return Deadline::Clock::now(); }

  static std::uint64_t random_number() {
    return std::bit_cast<std::uint64_t>(random_bytes<sizeof(std::uint64_t)>()) | 1;  // 0 means none
  }

  std::chrono::milliseconds heartbeat() const {
    return std::max(std::chrono::milliseconds(1), std::min(std::chrono::milliseconds(500), limits_.liveness / 4));
  }

  bool receive(ConnectionId id, std::span<const std::byte> frame) {
    const std::optional<FromWorker> message = decode<FromWorker>(frame);
    if (!message) {
      return false;
    }
    if (const Announce* announce = std::get_if<Announce>(&*message)) {
      if (const std::optional<Refused> refused = state_.announce(id, *announce, now())) {
        send_to(id, *refused);
      }
    } else if (const Committed* committed = std::get_if<Committed>(&*message)) {
      state_.committed(id, *committed, now());
    } else {
      state_.finished(id, std::get<Finished>(*message).attempt, now());
    }
    changed_.set();
    return true;
  }

  void disconnected(ConnectionId id) {
    connections_.erase(id);
    state_.disconnected(id, now());
    changed_.set();
  }

  /// Passes the attempts' events and the time to the state.
  async::Task<void> watch() {
    for (;;) {
      const std::optional<FormationState::Instant> next = state_.next();
      const Deadline deadline =
          next ? Deadline::at(*next) : Deadline::unbounded("each event of the state sets changed_");
      co_await changed_.wait(deadline);
      if (next && now() - *next > std::chrono::milliseconds(100)) {
        co_await loop_.sleep_for(std::chrono::milliseconds(100));  // this process was stopped: read messages first
      }
      for (const AttemptEvent& event : std::exchange(events_, {})) {
        if (event.failure) {
          state_.failed(event.attempt, *event.failure, now());
        } else {
          state_.joined(event.attempt, now());
        }
      }
      state_.on_time(now());
    }
  }

  /// Ends connections that send nothing for the liveness time, as JobServer does; logs what the formation waits for.
  async::Task<void> watch_liveness() {
    const std::chrono::milliseconds step = std::max(std::chrono::milliseconds(1), limits_.liveness / 8);
    Deadline notice = Deadline::after(notice_interval);
    for (;;) {
      const Deadline::Clock::time_point before = Deadline::Clock::now();
      co_await loop_.sleep_for(step);
      const Deadline::Clock::time_point after = Deadline::Clock::now();
      std::vector<ConnectionId> silent;
      for (const auto& [id, connection] : connections_) {
        connection->session->excuse_silence(after - before - step);
        if (connection->session->is_open() && after - connection->session->last_alive() > limits_.liveness) {
          silent.push_back(id);
        }
      }
      for (const ConnectionId id : silent) {
        state_.silent(id, silence_text(limits_.liveness), after);
        connections_.erase(id);
        changed_.set();
      }
      const std::string waits = state_.waits_for();
      if (waits.empty()) {
        notice = Deadline::after(notice_interval);
      } else if (notice.passed()) {
        log(LogLevel::warning, format_text("the job waits {}", {waits}));
        notice = Deadline::after(notice_interval);
      }
    }
  }
  static constexpr std::chrono::seconds notice_interval{10};

  /// @name Called by the state
  /// @{
  void open_attempt(std::uint64_t attempt, int world_size) override {
    StoreJobOptions job = job_options_;
    job.world_size = world_size;
    job.attempt = attempt;
    job.join_deadline = Deadline::after(options_.rejoin_timeout);
    job.on_joined = [this, attempt, world_size, joined = 0](int, const std::string&) mutable {
      if (++joined == world_size) {
        events_.push_back({attempt, {}});
        changed_.set();
      }
    };
    job.on_failure = [this, attempt](const Cause& cause) {
      events_.push_back({attempt, cause});
      changed_.set();
      callbacks_.on_failure(cause);
    };
    attempt_ = &store_.open(std::move(job));
    std::vector<WorkerId> ranks;
    for (const Worker* each : state_.members()) {
      ranks.push_back(each->id);
    }
    callbacks_.on_attempt(attempt, ranks);
  }
  void fail_attempt(const Cause& cause) override { attempt_->post_failure(cause); }

  template <class Message>
  void send_to(ConnectionId id, const Message& message) {
    const auto found = connections_.find(id);
    if (found != connections_.end()) {
      static_cast<void>(found->second->session->send(encode(message)));  // so few messages do not fill the queue
    }
  }
  void send(ConnectionId id, const Assignment& message) override { send_to(id, message); }
  void send(ConnectionId id, const Finished& message) override { send_to(id, message); }
  void send(ConnectionId id, const Failure& message) override { send_to(id, message); }
  void close(ConnectionId id) override { connections_.erase(id); }
  void on_end(const Cause* cause) override { callbacks_.on_end(cause); }
  /// @}

  async::EventLoop& loop_;
  StoreServer& store_;
  FormationOptions options_;
  StoreJobOptions job_options_;
  Limits limits_;
  FormationCallbacks callbacks_;
  std::map<ConnectionId, std::unique_ptr<WorkerSession>> connections_;
  ConnectionId last_id_ = 0;
  std::vector<AttemptEvent> events_;
  JobServer* attempt_ = nullptr;  ///< of the store
  FormationState state_;
  async::AutoResetEvent changed_;
  async::TaskHandle watch_task_;  ///< tasks come last: destroyed before the members that they use
  async::TaskHandle liveness_task_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
