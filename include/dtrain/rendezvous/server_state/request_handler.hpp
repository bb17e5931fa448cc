#pragma once
/// @file
/// RequestHandler of a JobState: serves the ranks' store requests, one response each, which a JobSink sends. Pure.

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"
#include "dtrain/rendezvous/server_state/barriers.hpp"
#include "dtrain/rendezvous/server_state/key_value_map.hpp"
#include "dtrain/rendezvous/server_state/rank_table.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// JobState and RequestHandler call it while they change: none of these functions calls them back.
class JobSink {
 public:
  virtual void send(SessionId session, ToRank message) = 0;
  /// Sends a response that shares its values with the store.
  virtual void send(SessionId session, ValueResponse message) = 0;
  virtual void close_after_sending(SessionId session) = 0;
  virtual void on_joined(int rank, const std::string& host) = 0;
  virtual void on_left(int rank) = 0;
  virtual void on_failure(const Cause& cause) = 0;
  /// A rank has joined that may belong to another job.
  virtual void warn(const std::string& sentence) = 0;

 protected:
  ~JobSink() = default;
};

/// Every request gets one response, unless its session ends first. Threads: the store server's. Its Limits bound its
/// memory.
class RequestHandler {
 public:
  /// @param sink sends the responses; outlives the handler
  RequestHandler(int world_size, const Limits& limits, JobSink& sink)
      : limits_(limits), world_size_(world_size), sink_(sink), keys_(limits), barriers_(world_size) {}
  RequestHandler(const RequestHandler&) = delete;
  RequestHandler& operator=(const RequestHandler&) = delete;

  using Instant = KeyValueMap::Instant;

  const KeyValueMap& keys() const noexcept { return keys_; }

  void open(SessionId session, int rank) { clients_.emplace(session, ClientRequests{rank, {}, 0}); }

  /// Removes a session and its pending requests.
  void close(SessionId session) {
    keys_.forget(session);
    barriers_.forget(session);
    clients_.erase(session);
  }

  std::optional<int> rank_of(SessionId session) const {
    const auto found = clients_.find(session);
    return found == clients_.end() ? std::nullopt : std::optional(found->second.rank);
  }

  /// Notifies every rank that the job has failed, and ends every request without a response.
  void fail(const Cause& cause) {
    for (auto& [session, client] : clients_) {
      sink_.send(session, Failure{cause});
      keys_.forget(session);
      client.pending.clear();
    }
    barriers_.clear();
  }

  /// Rank `left` has left the job: rejects its barriers, now and later, since none of them can complete.
  void refuse_barriers(int left) {
    left_.insert(left);
    for (const RequestKey id : barriers_.clear_those_of(left)) {
      refuse(id, cannot_complete({left}));
    }
  }

  /// A rank's activity, from its pending requests, for error sentences: "while it waited in barrier 'a'".
  std::string doing(SessionId session) const {
    for (const auto& [request, purpose] : clients_.at(session).pending) {
      if (!purpose.empty()) {
        return format_text("while it waited for other ranks ({})", {purpose});
      }
    }
    if (const std::optional<std::string> barrier = barriers_.waited_by(session)) {
      return format_text("while it waited in barrier {}", {in_quotes(*barrier)});
    }
    const std::optional<std::string> key = keys_.lacked_by(session);
    return key ? format_text("while it waited for key {}", {in_quotes(*key)}) : "while it worked";
  }

  /// Serves a request. @pre the session is open, and decode<FromRank> returned the request
  void receive(SessionId session, Request& request, Instant now = Deadline::Clock::now()) {
    const RequestKey id{session, request.id};
    ClientRequests& client = clients_.at(session);
    if (client.pending.size() >= limits_.pending_requests) {
      return refuse(id, format_text("this rank has {} requests without an answer, the limit; await some first",
                                    {client.pending.size()}));
    }
    if (!client.pending.emplace(request.id, std::move(request.purpose)).second) {
      return;  // an id that is used twice: its first use gets the response
    }
    serve(id, client.rank, request, now);
  }

  /// Cancels a request; no effect if it was answered already.
  void receive(SessionId session, const Cancel& cancel, Instant now = Deadline::Clock::now()) {
    const RequestKey id{session, cancel.id};
    if (const std::optional<KeyValueMap::Cancelled> wait = keys_.cancel(id)) {
      const bool has_purpose = !clients_.at(id.session).pending.at(id.request).empty();
      answer(id, Status::cancelled, sentence(*wait, has_purpose, now));
    } else if (const std::optional<Barriers::Unfinished> barrier = barriers_.cancel(id)) {
      answer(id, Status::cancelled, sentence(*barrier, now));
    }
  }

 private:
  struct ClientRequests {
    int rank = 0;
    std::map<std::uint64_t, std::string> pending;  ///< requests without a response, with their purposes
    std::size_t released_bytes = 0;                ///< bytes of the responses that the present change releases
  };

  static std::string sentence(const KeyValueMap::Cancelled& wait, bool has_purpose, Instant now) {
    const std::string waited = duration_text(now - wait.since);
    if (has_purpose) {
      return format_text("another rank had not done its part after {}", {waited});
    }
    std::string text;
    for (std::size_t i = 0; i < wait.missing.size() && text.size() < max_sentence_bytes / 4; ++i) {
      append_entry(text, ", ", in_quotes(wait.missing[i]));
    }
    if (wait.keys > 1) {
      append_text(text, " ({} of {} keys)", {wait.missing.size(), wait.keys});
    }
    return format_text("no rank set {} in the {} since this rank began to wait", {text, waited});
  }

  std::string sentence(const Barriers::Unfinished& barrier, Instant now) const {
    std::string text = format_text(
        "{} of {} ranks wait in it ({}, the first came {} ago)",
        {barrier.arrived.size(), barrier.members, rank_list(barrier.arrived), duration_text(now - barrier.since)});
    if (!barrier.missing.empty()) {
      append_text(text, "; {} did not come", {rank_list(barrier.missing)});
    }
    if (!barrier.cancelled.empty()) {
      append_text(text, "; {} arrived and cancelled", {rank_list(barrier.cancelled)});
    }
    return text;
  }

  template <class Value>
  DTRAIN_NOT_INLINED void answer(BasicResponse<Value> response, SessionId session) {
    const auto found = clients_.find(session);
    if (found != clients_.end()) {
      found->second.pending.erase(response.id);
      sink_.send(session, std::move(response));
    }
  }
  DTRAIN_NOT_INLINED void answer(RequestKey id, Status status, std::string text = {}, std::int64_t number = 0) {
    answer(Response{id.request, status, std::move(text), number}, id.session);
  }
  void answer(RequestKey id, const KeyValueMap::Refusal& refusal, std::int64_t number = 0) {
    answer(id, refusal ? Status::refused : Status::ok, refusal.value_or(""), refusal ? 0 : number);
  }
  void answer(RequestKey id, const KeyValueMap::Count& count) { answer(id, count.refusal, count.value); }

  void serve(RequestKey id, int rank, Request& request, Instant now) {
    std::vector<KeyValueMap::Released> released;
    const std::string& key = request.keys.front();
    switch (request.kind) {
      case RequestKind::set: answer(id, keys_.set(key, std::move(request.value), released)); break;
      case RequestKind::set_many: answer(id, keys_.set_many(request.keys, std::move(request.values), released)); break;
      case RequestKind::add: answer(id, keys_.add(key, request.number, released)); break;
      case RequestKind::append: answer(id, keys_.append(key, request.value, released)); break;
      case RequestKind::compare_set: compare_set(id, request, released); break;
      case RequestKind::erase: answer(id, keys_.erase(key) ? Status::ok : Status::missing); break;
      case RequestKind::try_get: {
        const SharedValue value = keys_.shared(key);
        answer(ValueResponse{id.request, value ? Status::ok : Status::missing, value}, id.session);
        break;
      }
      case RequestKind::barrier: arrive(id, rank, request, now); break;
      case RequestKind::get:
      case RequestKind::take:
      case RequestKind::get_many:
      case RequestKind::wait: wait(id, request, now); break;
    }
    release(released);
  }

  void compare_set(RequestKey id, Request& request, std::vector<KeyValueMap::Released>& released) {
    const std::string* value = keys_.find(request.keys.front());
    if (value == nullptr ? !request.expected : request.expected == *value) {
      answer(id, keys_.set(request.keys.front(), std::move(request.value), released), 1);
    } else {
      answer(id, value == nullptr ? Status::missing : Status::ok, value == nullptr ? std::string() : *value);
    }
  }

  void wait(RequestKey id, Request& request, Instant now) {
    if (keys_.waited_keys(id.session) + request.keys.size() > limits_.waited_keys) {
      return refuse(id, format_text("this rank would wait for more than {} keys, the limit", {limits_.waited_keys}));
    }
    if (!keys_.wait(id, request.kind, request.keys, now, request.number)) {
      const KeyValueMap::Released wait{id, request.kind, std::move(request.keys), request.number};
      answer(found(wait), id.session);
      count_take(wait);
    }
  }

  void refuse(RequestKey id, std::string why) { answer(id, Status::refused, std::move(why)); }

  static ValueResponse refusal(RequestKey id, std::string why) {
    return ValueResponse(id.request, Status::refused, std::make_shared<const std::string>(std::move(why)));
  }

  /// Response to a wait whose keys all exist. It shares the store's values.
  ValueResponse found(const KeyValueMap::Released& wait) const {
    ValueResponse response{wait.id.request};
    if (wait.kind == RequestKind::get || wait.kind == RequestKind::take) {
      response.text = keys_.shared(wait.keys.front());
    } else if (wait.kind == RequestKind::get_many) {
      std::size_t bytes = 0;
      for (const std::string& key : wait.keys) {
        response.values.push_back(keys_.shared(key));
        bytes += response.values.back()->size();
      }
      if (bytes > max_batch_bytes) {
        return refusal(wait.id, format_text("the values of these {} keys have {} bytes; at most {} are given at once; "
                                            "ask for fewer keys",
                                            {wait.keys.size(), bytes, max_batch_bytes}));
      }
    }
    return response;
  }

  void count_take(const KeyValueMap::Released& wait) {
    if (wait.kind == RequestKind::take) {
      keys_.take(wait.keys.front(), wait.readers);
    }
  }

  /// Answers all waits that a change released; rejects those of a session once they exceed half of outgoing_bytes.
  void release(const std::vector<KeyValueMap::Released>& released) {
    for (const KeyValueMap::Released& each : released) {
      ValueResponse response = found(each);
      std::size_t& sum = clients_.at(each.id.session).released_bytes;
      sum += response.text ? response.text->size() : 0;
      for (const SharedValue& value : response.values) {
        sum += value->size();
      }
      if (sum > limits_.outgoing_bytes / 2) {
        response = refusal(
            each.id,
            format_text("the answers that this rank waits for at once have more than {} bytes; wait for fewer values "
                        "at once",
                        {limits_.outgoing_bytes / 2}));
      }
      answer(std::move(response), each.id.session);
    }
    for (const KeyValueMap::Released& each : released) {  // a take counts after all responses that need the key
      count_take(each);
      clients_.at(each.id.session).released_bytes = 0;
    }
  }

  void arrive(RequestKey id, int rank, Request& request, Instant now) {
    const RankSet& members = request.members;
    const bool of_all = members.ranges.empty();
    if (!of_all && (!members.contains(rank) || members.last() >= world_size_)) {
      return refuse(id, format_text("it is a barrier of {} in a job of {}, and rank {} called it",
                                    {rank_list(members.ranks()), world_size_, rank}));
    }
    if (barriers_.ranges_of(id.session) + members.ranges.size() > limits_.barrier_ranges) {
      return refuse(id, format_text("this rank would wait in barriers of more than {} ranges of ranks, the limit",
                                    {limits_.barrier_ranges}));
    }
    std::vector<int> left;
    std::copy_if(left_.begin(), left_.end(), std::back_inserter(left),
                 [&](int each) { return of_all || members.contains(each); });
    if (!left.empty()) {
      return refuse(id, cannot_complete(left));
    }
    std::vector<RequestKey> released;
    switch (barriers_.arrive(request.keys.front(), rank, id, now, released, std::move(request.members))) {
      case Barriers::ArrivalResult::already_there:
        return refuse(id, "this rank waits in it already; one thread of a rank passes it at a time");
      case Barriers::ArrivalResult::other_members:
        return refuse(id,
                      format_text("other ranks wait in a barrier of this name: {}; give one of the two another name",
                                  {rank_list(barriers_.members_of(request.keys.front()).ranks())}));
      case Barriers::ArrivalResult::waiting:
      case Barriers::ArrivalResult::completed: break;
    }
    for (const RequestKey each : released) {
      answer(each, Status::ok);
    }
  }

  static std::string cannot_complete(const std::vector<int>& left) {
    return format_text("it cannot complete: {} left the job", {rank_list(left)});
  }

  Limits limits_;
  int world_size_;
  JobSink& sink_;
  KeyValueMap keys_;
  Barriers barriers_;
  std::set<int> left_;  ///< ranks that have left: none of their barriers can complete
  std::map<SessionId, ClientRequests> clients_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
