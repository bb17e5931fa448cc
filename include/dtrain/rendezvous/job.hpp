#pragma once
/// @file
/// What the store knows of its job, as a state machine without sockets and clocks: messages in, effects out.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/rendezvous/effect.hpp"
#include "dtrain/rendezvous/job_members.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/rank_list.hpp"
#include "dtrain/rendezvous/request_desk.hpp"
#include "dtrain/rendezvous/seats.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Who sits where, the formation, the first cause and leaving; what the ranks ask is for the RequestDesk.
/// Threads: one. Bounded by its Limits whatever it is told.
class Job {
 public:
  /// @param id of this start of the job, which every rank gets
  /// @param job its name, and `opener` the rank that opens its store: with them all others are compared
  Job(int world_size, std::string owner, std::string id, const Limits& limits, const std::string& job = {},
      StoreOpener opener = {})
      : id_(std::move(id)),
        members_(owner, job, std::move(opener)),
        seats_(world_size, std::move(owner)),
        desk_(world_size, limits, effects_) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() = default;

  /// The effects since the last call.
  std::vector<Effect> take_effects() { return std::exchange(effects_, {}); }

  const std::optional<Cause>& cause() const noexcept { return cause_; }
  bool formed() const noexcept { return formed_; }
  const Seats& seats() const noexcept { return seats_; }
  const KeySpace& keys() const noexcept { return desk_.keys(); }

  /// Nobody is left to serve: all ranks joined (or the job failed), and all of them have left or were lost.
  bool over() const noexcept { return (formed_ || cause_) && seats_.present() == 0; }

  bool has_joined(SessionId session) const { return ranks_.contains(session); }

  /// What became of somebody who wants to join: a session that has joined, or why not.
  using Verdict = std::variant<std::monostate, Refused, Failure>;

  /// Somebody who has shown that it may wants to join. @pre the session is new
  Verdict join(SessionId session, const Join& join) {
    const JobComparison compared = members_.compare(join);
    if (compared.result == JobComparison::Result::other) {
      note_refusal(compared.sentence);
      return Refused{compared.sentence, true};
    }
    if (cause_) {
      return Failure{*cause_};
    }
    auto verdict = claim(session, join);
    if (const Refused* refused = std::get_if<Refused>(&verdict)) {
      note_refusal(refused->sentence);
      return *refused;
    }
    if (const Cause* cause = std::get_if<Cause>(&verdict)) {
      post(*cause);
      return Failure{*cause};
    }
    ranks_.emplace(session, join.facts.rank);
    desk_.open(session, join.facts.rank);
    members_.add(join);
    if (compared.result == JobComparison::Result::doubtful && !std::exchange(has_doubted_, true)) {
      effects_.emplace_back(Doubt{compared.sentence});  // one for each job is enough
    }
    effects_.emplace_back(Joined{join.facts.rank, join.facts.host});
    if (seats_.complete()) {
      form();
    }
    return std::monostate{};
  }

  /// Somebody was refused. The sentence is kept for those who wait in vain for the rank it might have been.
  void note_refusal(std::string sentence) { last_refusal_ = std::move(sentence); }

  /// A rank sent a message in its session.
  void receive(SessionId session, FromRank message) {
    std::visit([&](auto& each) { on(session, each); }, message);
  }

  /// A session is gone. @returns the loss, for post, if it had joined and not left
  std::optional<Cause> closed(SessionId session, const std::string& how) {
    const auto found = ranks_.find(session);
    if (found == ranks_.end()) {
      return std::nullopt;
    }
    const int rank = found->second;
    const std::string doing = formed_ ? desk_.doing(session) : "while the ranks were joining";
    const Cause cause{CauseKind::lost, rank, seats_.at(rank).facts.host, how + " " + doing};
    remove(session, Seats::State::lost);
    return cause;
  }

  /// The first cause wins; it goes to every rank at once.
  void post(const Cause& cause) {
    if (cause_) {
      return;
    }
    cause_ = cause;
    effects_.emplace_back(HasFailed{cause});
    for (const auto& [session, rank] : ranks_) {
      send(session, Failure{cause});
    }
    desk_.fail();
  }

  /// Who has not joined yet.
  std::string missing() const { return rank_list(seats_.in(Seats::State::empty)); }

  /// The deadline of the formation has passed. @param patience says how long it was: "600 s"
  void formation_late(const std::string& patience) {
    if (formed_ || cause_) {
      return;
    }
    std::string text = "within " + patience + " only " + rank_list(seats_.in(Seats::State::joined)) + " of " +
                       std::to_string(seats_.world_size()) + " joined, " + missing() +
                       " did not; see whether they run and know the address of the store";
    if (!last_refusal_.empty()) {
      text += " (a process was refused: " + last_refusal_ + ")";
    }
    post(Cause{CauseKind::timeout, -1, {}, std::move(text)});
  }

 private:
  void send(SessionId session, ToRank message) { effects_.emplace_back(send_to(session, std::move(message))); }
  void close(SessionId session) { effects_.emplace_back(CloseAfterSending{session}); }

  /// A seat for it. Where ranks of two jobs may meet, because nothing told them apart so far, a second claim of a seat
  /// ends a job that is not complete yet.
  std::variant<std::monostate, Refused, Cause> claim(SessionId session, const Join& join) {
    const bool opens_another = members_.opens_another(join);
    const bool comes_again = seats_.seat_of(join) != nullptr;  // its first connection may not have ended yet
    const Seats::Seat* const taken = comes_again ? nullptr : seats_.taken_by(join.facts.rank);
    const bool one_size = join.world_size == seats_.world_size();
    if (members_.has_opener() && !seats_.complete() && one_size && (opens_another || taken != nullptr)) {
      return Cause{CauseKind::disagreement, join.facts.rank, join.facts.host,
                   who(join) + " claims a place that " + (opens_another ? members_.opener() : taken->who()) +
                       " has, while the job forms: two jobs have met at one port, or a rank was given twice; " +
                       detail::own_name_remedy() + ", and each process its own rank"};
    }
    if (opens_another) {
      return Refused{members_.opener() + " has opened this store, for another job; " + detail::own_name_remedy(), true};
    }
    return seats_.sit(session, join);
  }

  void form() {
    auto formed = form_membership(seats_.facts(), id_);
    if (const Cause* cause = std::get_if<Cause>(&formed)) {
      return post(*cause);
    }
    formed_ = true;
    for (Membership& membership : std::get<std::vector<Membership>>(formed)) {
      const SessionId session = seats_.at(membership.rank).session;
      send(session, Welcome{std::move(membership)});
    }
  }

  void remove(SessionId session, Seats::State how) {
    seats_.rise(ranks_.at(session), how);
    desk_.close(session);
    ranks_.erase(session);
  }

  void on(SessionId session, Request& request) {
    if (cause_) {
      return send(session, Response{request.id, Status::failed, cause_->sentence(), 0});
    }
    if (!formed_) {
      return send(session, Response{request.id, Status::refused, "not all ranks have joined yet", 0});
    }
    desk_.receive(session, request);
  }

  void on(SessionId session, const Cancel& cancel) { desk_.receive(session, cancel); }

  void on(SessionId, const Report& report) { post(report.cause); }

  void on(SessionId session, const Leave&) {
    const int rank = ranks_.at(session);
    const std::string host = seats_.at(rank).facts.host;
    send(session, Left{});
    close(session);
    remove(session, Seats::State::left);
    effects_.emplace_back(HasLeft{rank});
    if (!formed_) {
      return post(Cause{CauseKind::lost, rank, host, "it left before all ranks had joined"});
    }
    desk_.refuse_barriers(rank);
  }

  std::string id_;
  JobMembers members_;
  Seats seats_;
  std::map<SessionId, int> ranks_;  ///< the sessions that have joined and not left, and whose they are
  std::optional<Cause> cause_;
  bool formed_ = false;
  bool has_doubted_ = false;
  std::string last_refusal_;
  std::vector<Effect> effects_;
  RequestDesk desk_;  ///< answers into effects_
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
