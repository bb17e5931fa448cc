#pragma once
/// @file
/// Where the requests of a job's ranks are served: a pure state machine, requests in, answers out.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/printable.hpp"
#include "dtrain/core/seconds_text.hpp"
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

  using Instant = KeyWaits::Instant;

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

  /// This rank has left the job: no barrier that it has a part in can complete any more.
  void refuse_barriers(int left) {
    left_.insert(left);
    for (const RequestKey who : barriers_.clear_those_of(left)) {
      answer(who, Status::refused, cannot_complete({left}));
    }
  }

  /// What a rank is doing, as far as its requests tell.
  std::string doing(SessionId session) const {
    if (const std::optional<std::string> barrier = barriers_.waited_by(session)) {
      return "while it waited in barrier " + in_quotes(*barrier);
    }
    const std::optional<std::string> key = keys_.lacked_by(session);
    return key ? "while it waited for key " + in_quotes(*key) : "while it worked";
  }

  /// @pre the session is open, and the request came out of decode_from_rank
  void receive(SessionId session, Request& request, Instant now = Deadline::Clock::now()) {
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
    serve(who, client.rank, request, now);
  }

  /// The rank gives a request up; one that was answered meanwhile stays so.
  void receive(SessionId session, const Cancel& cancel, Instant now = Deadline::Clock::now()) {
    const RequestKey who{session, cancel.id};
    if (const std::optional<KeyWaits::GivenUp> wait = keys_.cancel(who)) {
      answer(who, Status::gave_up, sentence(*wait, now));
    } else if (const std::optional<Barriers::Unfinished> barrier = barriers_.cancel(who)) {
      answer(who, Status::gave_up, sentence(*barrier, now));
    }
  }

 private:
  struct Client {
    int rank = 0;
    std::set<std::uint64_t> pending;  ///< requests without an answer
  };

  static std::string sentence(const KeyWaits::GivenUp& wait, Instant now) {
    std::string text;
    for (std::size_t i = 0; i < wait.missing.size() && text.size() < max_sentence_bytes / 4; ++i) {
      text += (i == 0 ? "" : ", ") + in_quotes(wait.missing[i]);
    }
    if (wait.keys > 1) {
      text += " (" + std::to_string(wait.missing.size()) + " of " + std::to_string(wait.keys) + " keys)";
    }
    return "no rank set " + text + " in the " + seconds_text(now - wait.since) + " since this rank began to wait";
  }

  std::string sentence(const Barriers::Unfinished& barrier, Instant now) const {
    std::string text = std::to_string(barrier.arrived.size()) + " of " + std::to_string(barrier.parties) +
                       " ranks wait in it (" + rank_list(barrier.arrived) + ", the first came " +
                       seconds_text(now - barrier.since) + " ago)";
    if (!barrier.missing.empty()) {
      text += "; " + rank_list(barrier.missing) + " did not come";
    }
    if (!barrier.gave_up.empty()) {
      text += "; " + rank_list(barrier.gave_up) + " came and gave up";
    }
    return text;
  }

  template <class Value>
  void answer(BasicResponse<Value> response, SessionId session) {
    const auto found = clients_.find(session);
    if (found != clients_.end()) {
      found->second.pending.erase(response.id);
      effects_.emplace_back(send_to(session, std::move(response)));
    }
  }
  void answer(RequestKey who, Status status, std::string text = {}, std::int64_t number = 0) {
    answer(Response{who.request, status, std::move(text), number}, who.session);
  }
  void answer(RequestKey who, const KeySpace::Refusal& refusal, std::int64_t number = 0) {
    answer(who, refusal ? Status::refused : Status::ok, refusal.value_or(""), refusal ? 0 : number);
  }

  void serve(RequestKey who, int rank, Request& request, Instant now) {
    std::vector<KeyWaits::Released> released;
    const std::string& key = request.keys.front();
    switch (request.operation) {
      case Operation::set: answer(who, keys_.set(key, std::move(request.value), released)); break;
      case Operation::set_many: answer(who, keys_.set_many(request.keys, std::move(request.values), released)); break;
      case Operation::add: count(who, keys_.add(key, request.number, released)); break;
      case Operation::append: count(who, keys_.append(key, request.value, released)); break;
      case Operation::compare_set: compare_set(who, request, released); break;
      case Operation::erase: answer(who, keys_.erase(key) ? Status::ok : Status::missing); break;
      case Operation::try_get: {
        const SharedValue value = keys_.shared(key);
        answer(ValueResponse{who.request, value ? Status::ok : Status::missing, value}, who.session);
        break;
      }
      case Operation::get:
      case Operation::wait:
      case Operation::get_many:
      case Operation::take: wait(who, request, now); break;
      case Operation::barrier: arrive(who, rank, request, now); break;
    }
    release(released);
  }

  void count(RequestKey who, const KeySpace::Count& count) { answer(who, count.refusal, count.value); }

  void compare_set(RequestKey who, Request& request, std::vector<KeyWaits::Released>& released) {
    const std::string& key = request.keys.front();
    const std::string* value = keys_.find(key);
    const bool as_expected = value == nullptr ? !request.expected : request.expected == *value;
    if (as_expected) {
      answer(who, keys_.set(key, std::move(request.value), released), 1);
    } else {
      answer(who, value == nullptr ? Status::missing : Status::ok, value == nullptr ? std::string() : *value);
    }
  }

  void wait(RequestKey who, Request& request, Instant now) {
    if (keys_.waits().keys_of(who.session) + request.keys.size() > limits_.waited_keys) {
      return answer(who, Status::refused,
                    "this rank would wait for more than " + std::to_string(limits_.waited_keys) + " keys, the limit");
    }
    if (!keys_.wait(who, request.operation, request.keys, now, request.number)) {
      const KeyWaits::Released wait{who, request.operation, std::move(request.keys), request.number};
      answer(found(wait), who.session);
      count_take(wait);
    }
  }

  static ValueResponse refusal(RequestKey who, std::string why) {
    return {who.request, Status::refused, std::make_shared<const std::string>(std::move(why))};
  }

  /// The answer to a wait whose keys all exist, with values that are the store's own.
  ValueResponse found(const KeyWaits::Released& wait) const {
    ValueResponse response;
    response.id = wait.who.request;
    if (wait.operation == Operation::get || wait.operation == Operation::take) {
      response.text = keys_.shared(wait.keys.front());
    } else if (wait.operation == Operation::get_many) {
      std::size_t bytes = 0;
      for (const std::string& key : wait.keys) {
        bytes += keys_.find(key)->size();
      }
      if (bytes > max_batch_bytes) {
        return refusal(wait.who, "the values of these " + std::to_string(wait.keys.size()) + " keys have " +
                                     std::to_string(bytes) + " bytes; at most " + std::to_string(max_batch_bytes) +
                                     " are given at once; ask for fewer keys");
      }
      for (const std::string& key : wait.keys) {
        response.values.push_back(keys_.shared(key));
      }
    }
    return response;
  }

  void count_take(const KeyWaits::Released& wait) {
    if (wait.operation == Operation::take) {
      keys_.take(wait.keys.front(), wait.readers);
    }
  }

  /// All that one change releases is answered at once, but no session gets more of it than may wait to be sent to it.
  void release(const std::vector<KeyWaits::Released>& released) {
    std::map<SessionId, std::size_t> bytes;
    for (const KeyWaits::Released& each : released) {
      ValueResponse response = found(each);
      std::size_t& sum = bytes[each.who.session];
      sum += response.text ? response.text->size() : 0;
      for (const SharedValue& value : response.values) {
        sum += value->size();
      }
      if (sum > limits_.outgoing_bytes / 2) {
        response =
            refusal(each.who, "the answers that this rank waits for at once have more than " +
                                  std::to_string(limits_.outgoing_bytes / 2) + " bytes; wait for fewer values at once");
      }
      answer(std::move(response), each.who.session);
    }
    for (const KeyWaits::Released& each : released) {  // now that nobody's answer needs the key any more
      count_take(each);
    }
  }

  void arrive(RequestKey who, int rank, Request& request, Instant now) {
    const RankSet& parties = request.parties;
    const bool of_all = parties.runs.empty();
    if (!of_all && (!parties.contains(rank) || parties.last() >= world_size_)) {
      return answer(who, Status::refused,
                    "it is one of " + rank_list(parties.ranks()) + " of a job of " + std::to_string(world_size_) +
                        ", and rank " + std::to_string(rank) + " came to it");
    }
    if (barriers_.runs_of(who.session) + parties.runs.size() > limits_.party_runs) {
      return answer(who, Status::refused,
                    "this rank would wait in barriers of more than " + std::to_string(limits_.party_runs) +
                        " runs of ranks, the limit");
    }
    std::vector<int> left;
    std::copy_if(left_.begin(), left_.end(), std::back_inserter(left),
                 [&](int each) { return of_all || parties.contains(each); });
    if (!left.empty()) {
      return answer(who, Status::refused, cannot_complete(left));
    }
    std::vector<RequestKey> released;
    switch (barriers_.arrive(request.keys.front(), rank, who, now, released, std::move(request.parties))) {
      case Barriers::Arrival::already_there:
        return answer(who, Status::refused, "this rank waits in it already; one thread of a rank passes it at a time");
      case Barriers::Arrival::other_parties:
        return answer(
            who, Status::refused,
            "other ranks wait in one of this name: " + rank_list(barriers_.parties_of(request.keys.front()).ranks()) +
                "; name one of them otherwise");
      case Barriers::Arrival::waiting:
      case Barriers::Arrival::completed: break;
    }
    for (const RequestKey each : released) {
      answer(each, Status::ok);
    }
  }

  static std::string cannot_complete(const std::vector<int>& left) {
    return "it cannot complete: " + rank_list(left) + " left the job";
  }

  Limits limits_;
  int world_size_;
  std::vector<Effect>& effects_;
  KeySpace keys_;
  Barriers barriers_;
  std::set<int> left_;  ///< the ranks without which no barrier can complete any more
  std::map<SessionId, Client> clients_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
