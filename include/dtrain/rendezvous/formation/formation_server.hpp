#pragma once
/// @file
/// FormationServer: the connections of an elastic job's workers, their liveness, and the attempts that FormationState
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
  std::function<void()> on_end = [] {};
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
        liveness_task_(
            loop.spawn(watch_liveness(loop, connections_, limits.liveness, [this](ConnectionId id) { silent(id); }))) {
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
    const std::optional<FromWorker> message = decode<FromWorker>(frame);
    const Announce* const announce = message ? std::get_if<Announce>(&*message) : nullptr;
    if (announce == nullptr) {
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
    return {id, accepted_frame(limits_, heartbeat())};
  }
  void start(SessionId id, std::span<const std::byte> accepted) override {
    connections_.at(id)->start(limits_, heartbeat(), accepted);
  }
  /// @}

 private:
  struct WorkerSession final : ServedSession<FormationServer> {
    using ServedSession::ServedSession;
  };
  friend ServedSession<FormationServer>;

  /// Event of an attempt's JobServer. It is handled in the loop's next turn, since its callbacks may open no job.
  struct AttemptEvent {
    std::uint64_t attempt = 0;
    std::optional<Cause> failure{};  ///< nullopt: all ranks have joined
  };

  static FormationState::Instant now() { return Deadline::Clock::now(); }

  static std::uint64_t random_number() {
    return std::bit_cast<std::uint64_t>(random_bytes<sizeof(std::uint64_t)>()) | 1;  // 0 means none
  }

  std::chrono::milliseconds heartbeat() const { return heartbeat_interval(limits_, options_.max_workers); }

  bool receive_frame(ConnectionId id, std::span<const std::byte> frame) {
    const std::optional<FromWorker> message = decode<FromWorker>(frame);
    if (!message) {
      return false;
    }
    if (const Announce* announce = std::get_if<Announce>(&*message)) {
      if (const std::optional<Refused> refused = state_.announce(id, *announce, now())) {
        send(id, *refused);
      }
    } else if (const Committed* committed = std::get_if<Committed>(&*message)) {
      state_.committed(id, *committed, now());
    } else if (const FailureReport* report = std::get_if<FailureReport>(&*message)) {
      state_.reported(id, report->cause.text, now());
    } else {
      state_.finished(id, std::get<Finished>(*message).attempt, now());
    }
    changed_.set();
    return true;
  }

  void disconnected(ConnectionId id, const std::string&) {
    connections_.erase(id);
    state_.disconnected(id, now());
    changed_.set();
  }

  /// Passes the attempts' events and the time to the state.
  async::Task<void> watch() {
    Deadline notice = Deadline::after(notice_interval);
    for (;;) {
      const std::optional<FormationState::Instant> next = state_.next();
      const Deadline due = next ? Deadline::at(*next) : Deadline::unbounded("each event of the state sets changed_");
      co_await changed_.wait(state_.waits_for().empty() ? due : earlier(due, notice));
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
      const std::string& waits = state_.waits_for();
      if (!waits.empty() && notice.passed()) {
        log(LogLevel::warning, format_text("the job waits {}", {waits}));
      }
      notice = waits.empty() || notice.passed() ? Deadline::after(notice_interval) : notice;
    }
  }

  void silent(ConnectionId id) {
    state_.silent(id, silence_text(limits_.liveness), now());
    connections_.erase(id);
    changed_.set();
  }
  static constexpr std::chrono::seconds notice_interval{10};

  /// @name Called by the state
  /// @{
  std::optional<Cause> open_attempt(std::uint64_t attempt, int world_size) override {
    try {
      open(attempt, world_size);
      return std::nullopt;
    } catch (...) {
      return Cause{CauseKind::exception,
                   -1,
                   {},
                   format_text("opening attempt {} of an elastic job: {}", {attempt, exception_text()})};
    }
  }
  void open(std::uint64_t attempt, int world_size) {
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
    };
    attempt_ = &store_.open(std::move(job));
    std::vector<WorkerId> ranks;
    for (const Worker* each : state_.workers().members()) {
      ranks.push_back(each->id);
    }
    callbacks_.on_attempt(attempt, ranks);
  }
  void fail_attempt(const Cause& cause) override { attempt_->post_failure(cause); }

  void send(ConnectionId id, const ToWorker& message) override {
    const auto found = connections_.find(id);
    if (found != connections_.end()) {  // so few messages do not fill the queue
      static_cast<void>(
          found->second->session->send(std::visit([](const auto& each) { return encode(each); }, message)));
    }
  }
  void close(ConnectionId id) override { connections_.erase(id); }
  void on_end(const Cause*) override { callbacks_.on_end(); }
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
