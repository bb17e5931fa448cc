#pragma once
/// @file
/// JobServer of a StoreServer: sessions of one job's ranks, detection of lost ones, join timeout.

#include <algorithm>
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
#include "dtrain/rendezvous/protocol/codec.hpp"
#include "dtrain/rendezvous/server/rank_statuses.hpp"
#include "dtrain/rendezvous/server/status_listener.hpp"
#include "dtrain/rendezvous/server_state/job_state.hpp"
#include "dtrain/rendezvous/session/session.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// The answer to a Join: Accepted without its proof, Refused, or Failure.
struct Admission {
  std::optional<SessionId> session{};  ///< the session, if it is Accepted
  Frame frame{};
};

/// A session of a server, with its number. Lifetime: the server's; destruction closes the session.
template <class Server>
struct ServedSession : SessionHandler {
  ServedSession(Server& server, SessionId number, std::shared_ptr<Session> connected)
      : owner(server), id(number), session(std::move(connected)) {}
  ServedSession(const ServedSession&) = delete;
  ServedSession& operator=(const ServedSession&) = delete;
  ~ServedSession() { session->close(); }

  /// @param accepted a frame to send before all others
  void start(const Limits& limits, std::chrono::milliseconds heartbeat, std::span<const std::byte> accepted) {
    session->start(*this, {limits.outgoing_bytes, limits.send, true, heartbeat}, accepted);
  }
  bool on_frame(std::span<const std::byte> frame) override { return owner.receive_frame(id, frame); }
  void on_disconnected(const std::string& how) override { owner.disconnected(id, how); }

  Server& owner;
  SessionId id;
  std::shared_ptr<Session> session;
};

/// Accepted, without its proof.
inline Frame accepted_frame(const Limits& limits, std::chrono::milliseconds heartbeat) {
  return encode(Accepted{wire_milliseconds(heartbeat), wire_milliseconds(limits.liveness)});
}

/// Calls `on_silent(id)` for sessions that send nothing for the liveness time, in which the time that this process was
/// stopped or got no processor does not count. @param sessions std::map of pointers to ServedSessions, by their numbers
template <class Sessions, class OnSilent>
async::Task<void> watch_liveness(async::EventLoop& loop, Sessions& sessions, std::chrono::milliseconds liveness,
                                 OnSilent on_silent) {
  const std::chrono::milliseconds step = std::max(std::chrono::milliseconds(1), liveness / 8);
  for (;;) {
    const Deadline::Clock::time_point before = Deadline::Clock::now();
    co_await loop.sleep_for(step);
    const Deadline::Clock::time_point now = Deadline::Clock::now();
    std::vector<SessionId> silent;
    for (const auto& [id, served] : sessions) {
      served->session->excuse_silence(now - before - step);
      if (served->session->is_open() && now - served->session->last_alive() > liveness) {
        silent.push_back(id);
      }
    }
    for (const SessionId id : silent) {
      on_silent(id);
    }
  }
}

/// Sends what its JobState says, and detects lost ranks. A rank is lost if its connection ends before it has left, or
/// if it sends nothing for the liveness time. Lifetime: the loop outlives it; destroying it closes every session at
/// once. Threads: the loop's.
class JobServer final : private JobSink {
 public:
  /// @throws Error (posix) if the system gives no random bytes; Error (invalid_argument) for an impossible world size
  JobServer(async::EventLoop& loop, StoreJobOptions options, const Limits& limits)
      : loop_(loop),
        options_(checked(std::move(options))),
        limits_(limits),
        statuses_(loop, options_.goes_on_after_loss, options_.prints_statuses, limits.straggler_factor),
        job_(*this, options_.world_size, options_.owner, random_job_id(), limits_, options_.job, options_.opener),
        over_(loop),
        joined_(loop),
        join_timeout_task_(loop_.spawn(watch_joining())),
        liveness_task_(
            loop_.spawn(watch_liveness(loop, clients_, limits.liveness, [this](SessionId id) { silent(id); }))) {
    if (options_.role == ClientRole::rank) listener_.emplace(loop, [this] { return statuses_.lines(); });
  }
  JobServer(const JobServer&) = delete;
  JobServer& operator=(const JobServer&) = delete;
  const StoreJobOptions& options() const noexcept { return options_; }

  /// Posts a failure that the store's own process noticed. Only the job's first cause counts; every rank receives it.
  void post_failure(const Cause& cause) {
    job_.post(cause);
    settle();
  }

  /// Waits until every rank has left or, after a failure, closed its connection. @returns false at the deadline
  async::Task<bool> all_left(Deadline deadline) {
    const async::WakeReason ready = co_await over_.wait(deadline);
    co_return ready == async::WakeReason::ready;
  }

  std::size_t sessions() const noexcept { return clients_.size(); }

  const JobState& state() const noexcept { return job_; }

  /// After a failure, once, with StoreJobOptions::prints_statuses = false: what each rank did, in lines.
  std::vector<std::string> take_status_table() { return statuses_.take_table(); }
  /// The job is to end by a signal: what follows is no failure that a table explains.
  void on_stop() noexcept { statuses_.stopped(); }
  /// @name For the handshake of StoreServer
  /// @{
  /// Admits a process whose proof is checked. If it is accepted, call start(), which sends the frame first.
  /// @param session that of the Join; it has not been started
  Admission admit(const Join& join, const std::shared_ptr<Session>& session) {
    const RankTable::RankEntry* entry = job_.rank_table().find_process(join);
    ClientEntry* present = entry == nullptr ? nullptr : clients_.at(entry->session).get();
    if (present != nullptr && !present->session->is_open() && !present->session->has_received()) {
      present->ending.cancel();  // its connection broke before it had received Accepted
      present->session = session;
      job_.repeat_welcome(present->id);
      return accept(present->id);
    }
    const SessionId id = ++last_id_;
    clients_.emplace(id, std::make_unique<ClientEntry>(*this, id, session));
    const JoinResult result = job_.join(id, join, silence_of(join.info.rank));
    Admission admission;
    if (const Refused* refused = std::get_if<Refused>(&result)) {
      admission.frame = encode(*refused);
    } else if (const Failure* failure = std::get_if<Failure>(&result)) {
      admission.frame = encode(*failure);
    } else {
      shorten_join_deadline(join.join_timeout_ms);
      admission = accept(id);
    }
    if (!admission.session) {
      clients_.erase(id);
    }
    settle();
    return admission;
  }
  /// Starts an admitted session. @param accepted the frame of its Admission, with its proof
  void start(SessionId id, std::span<const std::byte> accepted) {
    clients_.at(id)->start(limits_, heartbeat(), accepted);
  }
  void record_refusal(std::string sentence) { job_.record_refusal(std::move(sentence)); }
  /// @}

 private:
  struct ClientEntry final : ServedSession<JobServer> {
    using ServedSession::ServedSession;

    async::TaskHandle ending;  ///< detach_after(), while the end of the session is not final
  };
  friend ServedSession<JobServer>;

  static StoreJobOptions checked(StoreJobOptions options) {
    if (options.world_size < 1 || options.world_size > max_world_size) {
      throw_error(Errc::invalid_argument, "opening the store of a job of {} ranks; 1 to {} are possible",
                  {options.world_size, max_world_size});
    }
    return options;
  }

  std::chrono::milliseconds heartbeat() const { return heartbeat_interval(limits_, options_.world_size); }

  /// A rank has joined. If it times out before the store, its timeout applies to the job, which needs every rank.
  void shorten_join_deadline(std::uint64_t join_timeout_ms) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(options_.join_deadline.remaining());
    if (join_timeout_ms < static_cast<std::uint64_t>(left.count())) {
      options_.join_deadline = Deadline::after(std::chrono::milliseconds(join_timeout_ms));
    }
    joined_.set();
  }

  async::Task<void> watch_joining() {
    constexpr std::chrono::seconds notice_interval{10};  // pause between the log lines while ranks are missing
    const Deadline::Clock::time_point began = Deadline::Clock::now();
    Deadline notice = Deadline::after(notice_interval);
    while (!job_.formed() && !job_.cause()) {
      co_await joined_.wait(earlier(notice, options_.join_deadline));
      const std::string so_far = duration_text(Deadline::Clock::now() - began);
      if (options_.join_deadline.passed()) {
        if (options_.missing_text && !job_.formed()) {
          job_.post({CauseKind::timeout,
                     -1,
                     {},
                     options_.missing_text(job_.rank_table().ranks_in(RankTable::RankState::not_joined))});
        }
        job_.on_join_timeout(so_far);
        settle();
      } else if (notice.passed() && !job_.formed() && !job_.cause()) {
        const char* const noun = options_.role == ClientRole::launcher ? "the launcher of node" : "rank";
        log(LogLevel::warning, format_text("the job's store waits for {}, {} so far{}",
                                           {job_.missing(noun), so_far, job_.refusal_text()}));
        notice = Deadline::after(notice_interval);
      }
    }
  }

  /// How long ago the process that has the rank was heard of; 0 if none has it.
  std::chrono::milliseconds silence_of(int rank) const {
    const RankTable::RankEntry* const entry = job_.rank_table().find(rank);
    const auto holder = entry == nullptr ? clients_.end() : clients_.find(entry->session);
    return holder == clients_.end() ? std::chrono::milliseconds(0)
                                    : std::chrono::duration_cast<std::chrono::milliseconds>(
                                          Deadline::Clock::now() - holder->second->session->last_alive());
  }

  Admission accept(SessionId id) const { return {id, accepted_frame(limits_, heartbeat())}; }

  bool receive_frame(SessionId id, std::span<const std::byte> frame) {
    if (!job_.has_joined(id)) {
      return true;  // the rank has left: its bytes are read only to see the connection's end
    }
    std::optional<FromRank> message = decode<FromRank>(frame);
    if (!message) {
      return false;
    }
    if (RankStatus* status = std::get_if<RankStatus>(&*message)) {
      statuses_.received(*job_.rank_of(id), std::move(*status));
      return true;
    }
    job_.receive(id, *std::move(message));
    settle();
    return true;
  }

  /// A session ended with its connection, which is a loss unless the rank has left. The loss is final at once, but for
  /// StoreJobOptions::loss_grace, and for a rank that may not know yet that it has joined: it may join again.
  void disconnected(SessionId id, const std::string& how) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) {
      return;
    }
    if (const std::optional<int> rank = job_.rank_of(id)) statuses_.disconnected(*rank);
    const Session& session = *found->second->session;
    const auto silence = Deadline::Clock::now() - session.last_alive();
    const std::string text =
        silence > limits_.liveness / 2 &&
                !session.is_paused()  // a rank without a processor may close its connection, having read nothing
            ? format_text("{}, and then its connection ended ({})", {silence_text(silence), how})
            : format_text("its process ended, or its connection broke, before it left the job ({})", {how});
    const std::chrono::milliseconds grace =
        session.has_received() ? options_.loss_grace : std::max(options_.loss_grace, limits_.rejoin);
    if (job_.has_joined(id) && !job_.cause() && grace.count() > 0) {
      found->second->ending = loop_.spawn(detach_after(grace, id, text));
    } else {
      detach(id, text);
    }
  }

  async::Task<void> detach_after(std::chrono::milliseconds grace, SessionId id, std::string how) {
    co_await loop_.sleep_for(grace);
    detach(id, how);
  }

  /// Ends a session. Its rank is lost, unless it has left.
  void detach(SessionId id, const std::string& how) {
    const std::optional<Cause> loss = job_.session_ended(id, how);
    clients_.erase(id);
    if (loss) {
      job_.post(*loss);
    }
    settle();
  }

  void silent(SessionId id) {
    const auto found = clients_.find(id);
    if (found != clients_.end()) {
      detach(id, found->second->session->is_paused()
                     ? format_text("it took nothing for {}", {duration_text(limits_.liveness)})
                     : silence_text(limits_.liveness));
    }
  }

  /// @name Called by the job
  /// @{
  template <class Message>
  void send_to(SessionId id, Message& message) {
    const auto found = clients_.find(id);
    if (found != clients_.end() && !found->second->session->send(encode(std::move(message)))) {
      unread_.push_back(id);
    }
  }
  void send(SessionId id, ToRank message) override { send_to(id, message); }
  void send(SessionId id, ValueResponse message) override { send_to(id, message); }
  void close_after_sending(SessionId id) override {
    const auto found = clients_.find(id);
    if (found != clients_.end()) {
      found->second->session->close_after_sending();
    }
  }
  void on_joined(int rank, const std::string& host) override {
    statuses_.joined(rank, host);
    options_.on_joined(rank, host);
  }
  void on_left(int rank) override {
    statuses_.left(rank);
    options_.on_left(rank);
  }
  void on_failure(const Cause& cause) override {
    if (options_.role == ClientRole::rank) statuses_.failed(cause);
    options_.on_failure(cause);
  }
  void warn(const std::string& sentence) override { log(LogLevel::warning, sentence); }
  /// @}

  /// After each call of the job: ends the sessions that left too many bytes unread, which changes the job again.
  void settle() {
    for (const SessionId id : std::exchange(unread_, {})) {
      detach(id, format_text("it left more than {} bytes of answers unread", {limits_.outgoing_bytes}));
    }
    if (job_.over()) {
      over_.set();
    }
  }

  async::EventLoop& loop_;
  StoreJobOptions options_;
  Limits limits_;
  RankStatuses statuses_;
  JobState job_;
  async::ManualResetEvent over_;
  std::vector<SessionId> unread_;  ///< sessions that took too little of what was sent
  SessionId last_id_ = 0;
  std::map<SessionId, std::unique_ptr<ClientEntry>> clients_;
  async::AutoResetEvent joined_;
  async::TaskHandle join_timeout_task_;  ///< tasks come last: destroyed before the members that they use
  async::TaskHandle liveness_task_;
  std::optional<StatusListener> listener_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
