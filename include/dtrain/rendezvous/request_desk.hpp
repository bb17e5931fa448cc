#pragma once
/// @file
/// Where the requests of a job's ranks are served: a pure state machine, requests in, answers out.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/rendezvous/barriers.hpp"
#include "dtrain/rendezvous/effect.hpp"
#include "dtrain/rendezvous/key_space.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/rank_list.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Every request gets one answer, unless its session ends first. Threads: one. Bounded by its Limits.
class RequestDesk {
 public:
  /// @param effects gets the answers. Lifetime: outlives the desk
  RequestDesk(int world_size, const Limits& limits, std::vector<Effect>& effects)
      : limits_(limits), world_size_(world_size), effects_(effects), keys_(limits), barriers_(world_size) {}
  RequestDesk(const RequestDesk&) = delete;
  RequestDesk& operator=(const RequestDesk&) = delete;
  ~RequestDesk() = default;

  const KeySpace& keys() const noexcept { return keys_; }

  /// A session may ask from now on, as this rank.
  void open(SessionId session, int rank) { clients_.emplace(session, Client{rank, {}}); }

  /// Nobody waits for the session's answers any more.
  void close(SessionId session) {
    keys_.forget(session);
    barriers_.forget(session);
    clients_.erase(session);
  }

  /// Ends every request without an answer: the job has failed, and its ranks were told so.
  void fail() {
    for (auto& [session, client] : clients_) {
      keys_.forget(session);
      client.pending.clear();
    }
    barriers_.clear();
  }

  /// These ranks have left the job: no barrier can complete any more.
  void refuse_barriers(const std::vector<int>& left) {
    cannot_complete_ = "it cannot complete: " + rank_list(left) + " left the job";
    for (const auto& [who, name] : barriers_.clear()) {
      answer(who, Status::refused, cannot_complete_);
    }
  }

  /// What a rank is doing, as far as its requests tell.
  std::string doing(SessionId session) const {
    if (const std::optional<std::string> barrier = barriers_.waited_by(session)) {
      return "while it waited in barrier '" + *barrier + "'";
    }
    const auto [count, key] = keys_.waited_by(session);
    return count == 0 ? "while it worked" : "while it waited for key '" + key + "'";
  }

  /// @pre the session is open
  void receive(SessionId session, Request& request) {
    const RequestKey who{session, request.id};
    Client& client = clients_.at(session);
    if (client.pending.size() >= limits_.pending_requests) {
      return answer(who, Status::refused,
                    "this rank has " + std::to_string(client.pending.size()) +
                        " requests without an answer, the limit; await some first");
    }
    if (!client.pending.insert(request.id).second) {
      return;  // an id that is used twice: its first use will be answered
    }
    serve(who, client.rank, request);
  }

  /// The rank gives a request up; one that was answered meanwhile stays so.
  void receive(SessionId session, const Cancel& cancel) {
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
             std::to_string(barrier->arrived.size()) + " of " + std::to_string(world_size_) + " ranks arrived; " +
                 rank_list(barrier->missing) + " did not");
    }
  }

 private:
  struct Client {
    int rank = 0;
    std::set<std::uint64_t> pending;  ///< requests without an answer
  };

  void answer(RequestKey who, Status status, std::string text = {}, std::int64_t number = 0) {
    const auto found = clients_.find(who.session);
    if (found != clients_.end()) {
      found->second.pending.erase(who.request);
      effects_.emplace_back(Send{who.session, Response{who.request, status, std::move(text), number}});
    }
  }

  void answer(std::vector<KeySpace::Released>& released) {
    for (KeySpace::Released& each : released) {
      answer(each.who, Status::ok, std::move(each.value).value_or(std::string()));
    }
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
    if (!cannot_complete_.empty()) {
      return answer(who, Status::refused, cannot_complete_);
    }
    std::vector<RequestKey> released;
    if (barriers_.arrive(name, rank, who, released) == Barriers::Arrival::already_there) {
      return answer(who, Status::refused, "this rank waits in it already; one thread of a rank passes it at a time");
    }
    for (const RequestKey each : released) {
      answer(each, Status::ok);
    }
  }

  Limits limits_;
  int world_size_;
  std::vector<Effect>& effects_;
  KeySpace keys_;
  Barriers barriers_;
  std::string cannot_complete_;  ///< why no barrier can complete any more; empty while they can
  std::map<SessionId, Client> clients_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
