#pragma once
/// @file
/// FormationServer: the store's side of an elastic job: its workers' connections, their liveness, and the attempts.

#include <bit>
#include <chrono>
#include <cstdint>
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

/// A template, as DTRAIN_ON_USE explains. Lifetime: the loop and the store outlive it. Destroying it closes every
/// connection. Threads: the loop's.
/// @tparam Launcher is notified of each attempt, `on_attempt(attempt, ranks)` with a std::vector<WorkerId>, and of the
/// job's end, `on_end()`; neither may call the server back.
template <class Launcher>
class FormationServer final : public WorkerConnections {
 public:
  /// @param job of each attempt; this object sets world size, attempt, deadline and callbacks
  FormationServer(async::EventLoop& loop, StoreServer& store, const FormationOptions& options, StoreJobOptions job,
                  const Limits& limits, Launcher launcher)
      : loop_(loop),
        store_(store),
        options_(options),
        job_options_(std::move(job)),
        limits_(limits),
        launcher_(std::move(launcher)),
        state_(*this, options, std::bit_cast<std::uint64_t>(random_bytes<sizeof(std::uint64_t)>()) | 1),  // not 0: none
        changed_(loop),
        watch_task_(loop.spawn(watch())),
        liveness_task_(loop.spawn(watch_liveness(loop, connections_, limits.liveness, [this](ConnectionId id) {
          state_.lost(id, CauseKind::lost, silence_text(limits_.liveness), now());
          connections_.erase(id);
          changed_.set();
        }))) {
    store_.set_workers(this);
  }
  FormationServer(const FormationServer&) = delete;
  FormationServer& operator=(const FormationServer&) = delete;
  ~FormationServer() { store_.set_workers(nullptr); }

  const FormationState<FormationServer>& state() const noexcept { return state_; }
  const FormationOptions& options() const noexcept { return options_; }

  /// @name Events of the launcher, as those of FormationState
  /// @{
  void process_ended(const std::string& host_id, std::int64_t process, int exit_code, const std::string& how) {
    state_.process_ended(host_id, process, exit_code, how, now());
    changed_.set();
  }
  void set_running_workers(int count, Deadline::Clock::time_point last_start) {
    state_.set_running_workers(count, now(), last_start);
    changed_.set();
  }
  void stop(const std::string& why) {
    state_.stop(why, now());
    changed_.set();
  }
  /// @}

  /// Ends when no worker is connected, 10 s later at most: after the job's end workers still ask how it has ended.
  /// @param is_cut_short whether to end at once; asked every 10 ms
  template <class Predicate>
  async::Task<void> drain(Predicate is_cut_short) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(10));
    while (!connections_.empty() && !deadline.passed() && !is_cut_short()) {
      co_await loop_.sleep_for(std::chrono::milliseconds(10));
    }
  }

  /// @name For the handshake of StoreServer
  /// @{
  Admission admit(std::span<const std::byte> frame, const std::shared_ptr<Session>& session) override {
    const std::optional<FromWorker> message = decode<FromWorker>(frame);
    const Announce* const announce = message ? std::get_if<Announce>(&*message) : nullptr;
    if (announce == nullptr) return {};
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
    using ServedSession<FormationServer>::ServedSession;
  };
  friend ServedSession<FormationServer>;
  friend FormationState<FormationServer>;
  friend AttemptFailures<FormationServer>;

  /// Event of an attempt's JobServer. It is handled in the loop's next turn, since its callbacks may open no job.
  struct AttemptEvent {
    std::uint64_t attempt = 0;
    std::optional<Cause> failure{};  ///< nullopt: all ranks have joined
  };

  static Deadline::Clock::time_point now() { return Deadline::Clock::now(); }

  std::chrono::milliseconds heartbeat() const { return heartbeat_interval(limits_, options_.max_workers); }

  bool receive_frame(ConnectionId id, std::span<const std::byte> frame) {
    const std::optional<FromWorker> message = decode<FromWorker>(frame);
    if (!message) return false;
    if (const Announce* announce = std::get_if<Announce>(&*message)) {
      if (const std::optional<Refused> refused = state_.announce(id, *announce, now())) send(id, *refused);
    } else if (const Committed* committed = std::get_if<Committed>(&*message)) {
      state_.committed(id, *committed, now());
    } else if (const Called* called = std::get_if<Called>(&*message)) {
      state_.called(id, called->attempt, now());
    } else if (const FailureReport* report = std::get_if<FailureReport>(&*message)) {
      const bool is_loss = report->cause.kind == CauseKind::lost;  // SIGTERM; any other kind is the worker's own error
      state_.lost(id, is_loss ? CauseKind::lost : CauseKind::exception, report->cause.text, now());
    } else {
      state_.finished(id, std::get<Finished>(*message), now());
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
      const std::optional<Deadline::Clock::time_point> next = state_.next();
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

  static constexpr std::chrono::seconds notice_interval{10};

  /// @name Called by the state
  /// @{
  std::optional<Cause> open_attempt(std::uint64_t attempt, int world_size) {
    StoreJobOptions job = job_options_;
    job.world_size = world_size;
    job.attempt = attempt;
    job.join_deadline = Deadline::after(options_.rejoin_timeout);
    job.on_joined = [this, attempt, world_size, joined = 0](int, const std::string&) mutable {
      if (++joined == world_size) note({attempt, {}});
    };
    job.on_failure = [this, attempt](const Cause& cause) { note({attempt, cause}); };
    try {
      attempt_ = &store_.open(std::move(job));
      std::vector<WorkerId> ranks;
      for (const Worker* each : state_.workers().members()) {
        ranks.push_back(each->id);
      }
      launcher_.on_attempt(attempt, ranks);
      return std::nullopt;
    } catch (...) {
      const std::string text = format_text("opening attempt {} of an elastic job: {}", {attempt, exception_text()});
      return Cause{CauseKind::exception, -1, {}, text};
    }
  }
  void note(AttemptEvent event) {
    events_.push_back(std::move(event));
    changed_.set();
  }
  void fail_attempt(const Cause& cause) { attempt_->post_failure(cause); }

  void send(ConnectionId id, const ToWorker& message) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    Frame frame = std::visit([](const auto& each) { return encode(each); }, message);
    static_cast<void>(found->second->session->send(std::move(frame)));  // so few messages do not fill the queue
  }
  void close(ConnectionId id) { connections_.erase(id); }
  void on_end(const Cause*) { launcher_.on_end(); }
  void warn(const std::string& sentence) { log(LogLevel::warning, sentence); }
  /// @}

  async::EventLoop& loop_;
  StoreServer& store_;
  FormationOptions options_;
  StoreJobOptions job_options_;
  Limits limits_;
  Launcher launcher_;
  std::map<ConnectionId, std::unique_ptr<WorkerSession>> connections_;
  ConnectionId last_id_ = 0;
  std::vector<AttemptEvent> events_;
  JobServer* attempt_ = nullptr;  ///< the attempt's job in the store
  FormationState<FormationServer> state_;
  async::AutoResetEvent changed_;
  async::TaskHandle watch_task_;  ///< tasks come last: destroyed before the members that they use
  async::TaskHandle liveness_task_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
