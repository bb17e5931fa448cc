#pragma once
/// @file
/// rendezvous::ServedJob: a job with the sessions of its ranks.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/async/event.hpp"
#include "dtrain/core/seconds_text.hpp"
#include "dtrain/rendezvous/formation_watch.hpp"
#include "dtrain/rendezvous/job.hpp"
#include "dtrain/rendezvous/job_options.hpp"
#include "dtrain/rendezvous/line.hpp"
#include "dtrain/rendezvous/random.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Does what its Job wants done, and notices who is gone: whose session has had no connection for the grace, or has
/// said nothing for the liveness time. Lifetime: the loop outlives it; destroying it closes every session at once.
/// Threads: the loop's.
class ServedJob {
 public:
  /// @throws Error (posix) if the system gives no random bytes; Error (invalid_argument) for an impossible world size
  ServedJob(async::EventLoop& loop, JobOptions options, const Limits& limits)
      : loop_(loop),
        options_(checked(std::move(options))),
        limits_(limits),
        job_(options_.world_size, options_.owner, random_job_id(), limits_, options_.job, options_.opener),
        over_(loop),
        formation_(loop, job_, options_.formation, [this] { apply(); }),
        listening_(loop_.spawn(watch_silence())) {}
  ServedJob(const ServedJob&) = delete;
  ServedJob& operator=(const ServedJob&) = delete;
  ~ServedJob() = default;

  const JobOptions& options() const noexcept { return options_; }

  /// Posts a failure that the store's own process noticed. The first cause of the job wins and goes to every rank.
  void post_failure(const Cause& cause) {
    job_.post(cause);
    apply();
  }

  /// The job's first cause; nothing while it is well.
  const std::optional<Cause>& cause() const noexcept { return job_.cause(); }

  /// Whether by the deadline every rank has left, or, after a failure, closed its connection.
  async::Task<bool> all_left(Deadline deadline) {
    const async::Ready ready = co_await over_.wait(deadline);
    co_return ready == async::Ready::ready;
  }

  std::size_t sessions() const noexcept { return members_.size(); }

  /// What its ranks keep in it.
  const KeySpace& keys() const noexcept { return job_.keys(); }

  /// @name For the server's door
  /// @{
  /// Somebody who may wants to join, or to go on. After Accepted, carry() with the same session.
  std::variant<Accepted, Refused, Failure> admit(const Join& join) {
    const Seats::Seat* seat = job_.seats().seat_of(join);
    const Member* former = seat == nullptr ? nullptr : members_.at(seat->session).get();
    if (former != nullptr && !former->line->attached() && former->line->received() == 0) {
      return accept(seat->session, *former);  // its connection broke before it had heard that it is in
    }
    const SessionId id = ++last_id_;
    auto member = std::make_unique<Member>(Nonce(random_bytes<16>()), line_of(id));
    Member& added = *members_.emplace(id, std::move(member)).first->second;
    const Job::Verdict verdict = job_.join(id, join);
    if (std::holds_alternative<std::monostate>(verdict)) {
      formation_.joined(join.patience_ms);
      const Accepted accepted = accept(id, added);
      apply();
      return accepted;
    }
    members_.erase(id);
    apply();
    const Refused* refused = std::get_if<Refused>(&verdict);
    return refused != nullptr ? std::variant<Accepted, Refused, Failure>(*refused) : std::get<Failure>(verdict);
  }
  std::variant<Accepted, Refused, Failure> admit(const Resume& resume) {
    const auto found = members_.find(resume.ticket.session);
    if (found == members_.end() || found->second->key != resume.ticket.key) {
      if (job_.cause()) {
        return Failure{*job_.cause()};
      }
      return Refused{"this session is over: it was without a connection for too long, or it never was"};
    }
    return accept(found->first, *found->second);
  }
  /// The session goes on over this connection. @param has how many frames the rank has
  void carry(SessionId id, std::unique_ptr<Link> link, std::uint64_t has) {
    const auto found = members_.find(id);
    if (found == members_.end()) {
      return;
    }
    link->reader.raise_bound(max_frame_bytes);
    link->watch(limits_.liveness);
    if (found->second->line->attach(std::move(link), has)) {
      found->second->waiting.cancel();
    } else {
      gone(id, "it missed frames that it had acknowledged, or claimed some that were never sent");
    }
  }
  void note_refusal(std::string sentence) { job_.note_refusal(std::move(sentence)); }
  /// @}

 private:
  struct Member {
    Member(Nonce secret_key, std::shared_ptr<Line> conversation) : key(secret_key), line(std::move(conversation)) {}
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;
    ~Member() { line->close(); }

    Nonce key;
    std::shared_ptr<Line> line;
    async::Spawned waiting;  ///< for a new connection
  };

  static JobOptions checked(JobOptions options) {
    if (options.world_size < 1 || options.world_size > max_world_size) {
      throw Error(Errc::invalid_argument, "opening the store of a job of " + std::to_string(options.world_size) +
                                              " ranks; 1 to " + std::to_string(max_world_size) + " are possible");
    }
    return options;
  }

  std::shared_ptr<Line> line_of(SessionId id) {
    Line::Handlers handlers;
    handlers.on_frame = [this, id](std::span<const std::byte> frame) { return hear(id, frame); };
    handlers.on_end = [this, id](const std::string& how) { disconnected(id, how); };
    const LineOptions line{limits_.outgoing_bytes, limits_.send, true, heartbeat()};
    return std::make_shared<Line>(loop_, line, std::move(handlers));
  }

  /// Fewer heartbeats a rank where there are many ranks: ten thousand of them say 10,000 a second.
  std::chrono::milliseconds heartbeat() const {
    const std::chrono::milliseconds wanted(std::max(500, options_.world_size / 10));
    return std::max(std::chrono::milliseconds(1), std::min(wanted, limits_.liveness / 4));
  }

  Accepted accept(SessionId id, const Member& member) const {
    Accepted accepted;
    accepted.ticket = Ticket{id, member.key};
    accepted.received = member.line->received();
    accepted.heartbeat_ms = on_the_wire(heartbeat());
    accepted.liveness_ms = on_the_wire(limits_.liveness);
    accepted.grace_ms = on_the_wire(limits_.grace);
    return accepted;
  }
  static std::uint32_t on_the_wire(std::chrono::milliseconds time) noexcept {
    return static_cast<std::uint32_t>(std::min(time, std::chrono::milliseconds(0xffffffffU)).count());
  }

  bool hear(SessionId id, std::span<const std::byte> frame) {
    if (!job_.has_joined(id)) {
      return true;  // it has left: what it still says is read only so that its end is seen
    }
    std::optional<FromRank> message = decode_from_rank(frame);
    if (!message) {
      return false;
    }
    job_.receive(id, *std::move(message));
    apply();
    return true;
  }

  /// A session has no connection any more: it may come back for a while, unless it has left or the job is failing.
  void disconnected(SessionId id, const std::string& how) {
    const std::string text = "its process ended, or its connection broke, before it left the job (" + how + ")";
    const auto found = members_.find(id);
    if (found == members_.end()) {
      return;
    }
    const bool may_come_back = job_.has_joined(id) && !job_.cause() && limits_.grace.count() > 0;
    if (may_come_back) {
      found->second->waiting = loop_.spawn(wait_for(id, text));
    } else {
      gone(id, text);
    }
  }

  async::Task<void> wait_for(SessionId id, std::string how) {
    co_await loop_.sleep_for(limits_.grace);
    gone(id, how);
  }

  /// A session is over.
  void gone(SessionId id, const std::string& how) {
    const std::optional<Cause> loss = job_.closed(id, how);
    members_.erase(id);
    if (loss) {
      job_.post(*loss);
    }
    apply();
  }

  /// Where the store's own process was stopped meanwhile, nobody is blamed for it.
  async::Task<void> watch_silence() {
    const std::chrono::milliseconds step = std::max(std::chrono::milliseconds(1), limits_.liveness / 8);
    for (;;) {
      const Deadline::Clock::time_point before = Deadline::Clock::now();
      co_await loop_.sleep_for(step);
      const Deadline::Clock::time_point now = Deadline::Clock::now();
      const bool was_stopped = now - before > step + limits_.liveness / 2;
      std::vector<SessionId> silent;
      for (auto& [id, member] : members_) {
        if (was_stopped) {
          member->line->forgive_silence();
        } else if (member->line->attached() && now - member->line->last_heard() > limits_.liveness) {
          silent.push_back(id);
        }
      }
      for (const SessionId id : silent) {
        gone(id, "it has said nothing for " + seconds_text(limits_.liveness) +
                     " (it is stopped, or its host or the way to it is gone)");
      }
    }
  }

  /// Does what the job wants done. A handler may post a failure meanwhile: it is done after what came before.
  void apply() {
    if (std::exchange(applying_, true)) {
      return;
    }
    const std::unique_ptr<bool, void (*)(bool*)> guard(&applying_, [](bool* applying) { *applying = false; });
    std::vector<SessionId> unread;
    for (auto effects = job_.take_effects(); !effects.empty(); effects = job_.take_effects()) {
      for (Effect& effect : effects) {
        std::visit([&](auto& each) { perform(each, unread); }, effect);
      }
    }
    applying_ = false;
    if (job_.over()) {
      over_.set();
    }
    for (const SessionId id : unread) {
      gone(id, "it left more than " + std::to_string(limits_.outgoing_bytes) + " bytes of answers unread");
    }
  }

  template <class Answer>
  requires std::is_same_v<Answer, Send> || std::is_same_v<Answer, SendValues>
  void perform(Answer& send, std::vector<SessionId>& unread) {
    const auto found = members_.find(send.session);
    if (found != members_.end() && !found->second->line->send(encode(std::move(send.message)))) {
      unread.push_back(send.session);
    }
  }
  void perform(const CloseAfterSending& close, std::vector<SessionId>&) {
    const auto found = members_.find(close.session);
    if (found != members_.end()) {
      found->second->line->close_after_sending();
    }
  }
  void perform(const Joined& joined, std::vector<SessionId>&) {
    if (options_.on_joined) {
      options_.on_joined(joined.rank, joined.host);
    }
  }
  void perform(const HasLeft& left, std::vector<SessionId>&) {
    if (options_.on_left) {
      options_.on_left(left.rank);
    }
  }
  void perform(const HasFailed& failed, std::vector<SessionId>&) {
    if (options_.on_failure) {
      options_.on_failure(failed.cause);
    }
  }

  void perform(const Doubt& doubt, std::vector<SessionId>&) { log(LogLevel::warning, doubt.sentence); }

  async::EventLoop& loop_;
  JobOptions options_;
  Limits limits_;
  Job job_;
  async::Event over_;
  bool applying_ = false;
  SessionId last_id_ = 0;
  std::map<SessionId, std::unique_ptr<Member>> members_;
  FormationWatch formation_;  ///< the tasks come last: they are gone before what they use
  async::Spawned listening_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
