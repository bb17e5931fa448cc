#pragma once
/// @file
/// What the store knows of its job, as a state machine without sockets and clocks: messages in, effects out.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/rendezvous/barriers.hpp"
#include "dtrain/rendezvous/effect.hpp"
#include "dtrain/rendezvous/key_space.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/seats.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Threads: one. Bounded by its Limits whatever it is told.
class Job {
 public:
  /// @param id the name of the job that every rank gets
  Job(int world_size, std::string owner, std::string id, const Limits& limits)
      : limits_(limits),
        id_(std::move(id)),
        seats_(world_size, std::move(owner)),
        keys_(limits),
        barriers_(world_size) {}

  /// The effects since the last call.
  std::vector<Effect> take_effects() { return std::exchange(effects_, {}); }

  const std::optional<Cause>& cause() const noexcept { return cause_; }
  bool formed() const noexcept { return formed_; }
  const Seats& seats() const noexcept { return seats_; }
  const KeySpace& keys() const noexcept { return keys_; }

  /// Nobody is left to serve: all ranks joined (or the job failed), and all of them have left or were lost.
  bool over() const noexcept { return (formed_ || cause_) && seats_.present() == 0; }

  bool has_joined(SessionId session) const { return ranks_.contains(session); }

  /// A connection said hello. @pre it has not joined
  void hello(SessionId session, const Hello& hello) {
    if (cause_) {
      send(session, Failure{*cause_});
      return close(session);
    }
    auto verdict = seats_.sit(session, hello);
    if (const Refused* refused = std::get_if<Refused>(&verdict)) {
      return refuse(session, *refused);
    }
    if (const Cause* cause = std::get_if<Cause>(&verdict)) {
      send(session, Failure{*cause});
      close(session);
      return post(*cause);
    }
    ranks_.emplace(session, Member{hello.facts.rank, {}});
    send(session, Accepted{hello.nonce});
    effects_.emplace_back(Joined{hello.facts.rank, hello.facts.host});
    if (seats_.complete()) {
      form();
    }
  }

  /// Only this connection is wrong. The sentence is kept for those who wait in vain for the rank it might have been.
  void refuse(SessionId session, Refused refused) {
    last_refusal_ = refused.sentence;
    send(session, std::move(refused));
    close(session);
  }

  /// A connection that has joined sent a message.
  void receive(SessionId session, FromRank message) {
    std::visit([&](auto& each) { on(session, each); }, message);
  }

  /// A connection is gone. @returns the loss, for post, if it had joined and not left
  std::optional<Cause> closed(SessionId session, const std::string& how) {
    const auto found = ranks_.find(session);
    if (found == ranks_.end()) {
      return std::nullopt;
    }
    const int rank = found->second.rank;
    const Cause cause{CauseKind::lost, rank, seats_.at(rank).facts.host, how + " " + doing(session)};
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
    for (const auto& [session, member] : ranks_) {
      send(session, Failure{cause});
      keys_.forget(session);
    }
    barriers_.clear();
    for (auto& [session, member] : ranks_) {
      member.pending.clear();
    }
  }

  /// The deadline of the formation has passed. @param patience says how long it was: "600 s"
  void formation_late(const std::string& patience) {
    if (formed_ || cause_) {
      return;
    }
    std::string text = "within " + patience + " only " + rank_list(seats_.in(Seats::State::joined)) + " of " +
                       std::to_string(seats_.world_size()) + " joined, " + rank_list(seats_.in(Seats::State::empty)) +
                       " did not; see whether they run and know the address of the store";
    if (!last_refusal_.empty()) {
      text += " (a process was refused: " + last_refusal_ + ")";
    }
    post(Cause{CauseKind::timeout, -1, {}, std::move(text)});
  }

 private:
  struct Member {
    int rank = 0;
    std::map<std::uint64_t, Operation> pending;  ///< requests without an answer
  };

  void send(SessionId session, ToRank message) { effects_.emplace_back(Send{session, std::move(message)}); }
  void close(SessionId session) { effects_.emplace_back(CloseAfterSending{session}); }

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
    seats_.rise(ranks_.at(session).rank, how);
    keys_.forget(session);
    barriers_.forget(session);
    ranks_.erase(session);
  }

  /// What a rank was doing, as far as the store can tell.
  std::string doing(SessionId session) const {
    if (!formed_) {
      return "while the ranks were joining";
    }
    if (const std::optional<std::string> barrier = barriers_.waited_by(session)) {
      return "while it waited in barrier '" + *barrier + "'";
    }
    const auto [count, key] = keys_.waited_by(session);
    return count == 0 ? "while it worked" : "while it waited for key '" + key + "'";
  }

  void answer(RequestKey who, Status status, std::string text = {}, std::int64_t number = 0) {
    const auto found = ranks_.find(who.session);
    if (found != ranks_.end()) {
      found->second.pending.erase(who.request);
      send(who.session, Response{who.request, status, std::move(text), number});
    }
  }

  void answer(std::vector<KeySpace::Released>& released) {
    for (KeySpace::Released& each : released) {
      answer(each.who, Status::ok, std::move(each.value).value_or(std::string()));
    }
  }

  void on(SessionId session, Request& request) {
    const RequestKey who{session, request.id};
    Member& member = ranks_.at(session);
    if (cause_) {
      return answer(who, Status::failed, cause_->sentence());
    }
    if (!formed_) {
      return answer(who, Status::refused, "not all ranks have joined yet");
    }
    if (member.pending.size() >= limits_.pending_requests) {
      return answer(who, Status::refused,
                    "this rank has " + std::to_string(member.pending.size()) +
                        " requests without an answer, the limit; await some first");
    }
    if (!member.pending.emplace(request.id, request.operation).second) {
      return;  // an id that is used twice: its first use will be answered
    }
    serve(who, member.rank, request);
  }

  void serve(RequestKey who, int rank, Request& request) {
    std::vector<KeySpace::Released> released;
    const std::string& key = request.keys.front();
    switch (request.operation) {
      case Operation::set: {
        const std::optional<std::string> refusal = keys_.set(key, std::move(request.value), released);
        answer(who, refusal ? Status::refused : Status::ok, refusal.value_or(""));
        break;
      }
      case Operation::add: {
        const KeySpace::Sum sum = keys_.add(key, request.number, released);
        answer(who, sum.refusal ? Status::refused : Status::ok, sum.refusal.value_or(""), sum.value);
        break;
      }
      case Operation::try_get: {
        const std::string* value = keys_.find(key);
        answer(who, value != nullptr ? Status::ok : Status::missing, value != nullptr ? *value : std::string());
        break;
      }
      case Operation::get:
      case Operation::wait: wait(who, request); break;
      case Operation::barrier: arrive(who, rank, key); break;
    }
    answer(released);
  }

  void wait(RequestKey who, const Request& request) {
    const bool wants_value = request.operation == Operation::get;
    if (keys_.waited_by(who.session).first + request.keys.size() > limits_.waited_keys) {
      return answer(who, Status::refused,
                    "this rank would wait for more than " + std::to_string(limits_.waited_keys) + " keys, the limit");
    }
    if (keys_.wait(who, request.keys, wants_value)) {
      answer(who, Status::ok, wants_value ? *keys_.find(request.keys.front()) : std::string());
    }
  }

  void arrive(RequestKey who, int rank, const std::string& name) {
    if (seats_.anyone_left()) {
      return answer(who, Status::refused, cannot_complete());
    }
    std::vector<RequestKey> released;
    if (barriers_.arrive(name, rank, who, released) == Barriers::Arrival::already_there) {
      return answer(who, Status::refused, "this rank waits in it already; one thread of a rank passes it at a time");
    }
    for (const RequestKey each : released) {
      answer(each, Status::ok);
    }
  }

  std::string cannot_complete() const {
    return "it cannot complete: " + rank_list(seats_.in(Seats::State::left)) + " left the job";
  }

  void on(SessionId session, const Cancel& cancel) {
    const RequestKey who{session, cancel.id};
    if (const auto missing = keys_.cancel(who)) {
      std::string text;
      for (std::size_t i = 0; i < missing->size() && text.size() < max_sentence_bytes / 4; ++i) {
        text += (i == 0 ? "'" : ", '") + (*missing)[i] + "'";
      }
      answer(who, Status::gave_up,
             "no rank set " + text + (missing->size() > 1 ? " (" + std::to_string(missing->size()) + " keys)" : ""));
    } else if (const auto barrier = barriers_.cancel(who)) {
      answer(who, Status::gave_up,
             std::to_string(barrier->arrived.size()) + " of " + std::to_string(seats_.world_size()) +
                 " ranks arrived; " + rank_list(barrier->missing) + " did not");
    }
  }

  void on(SessionId, const Report& report) { post(report.cause); }

  void on(SessionId session, const Leave&) {
    const int rank = ranks_.at(session).rank;
    const std::string host = seats_.at(rank).facts.host;
    send(session, Left{});
    close(session);
    remove(session, Seats::State::left);
    effects_.emplace_back(HasLeft{rank});
    if (!formed_) {
      return post(Cause{CauseKind::lost, rank, host, "it left before all ranks had joined"});
    }
    for (const auto& [who, name] : barriers_.clear()) {
      answer(who, Status::refused, cannot_complete());
    }
  }

  Limits limits_;
  std::string id_;
  Seats seats_;
  KeySpace keys_;
  Barriers barriers_;
  std::map<SessionId, Member> ranks_;  ///< the connections that have joined and not left
  std::optional<Cause> cause_;
  bool formed_ = false;
  std::string last_refusal_;
  std::vector<Effect> effects_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
