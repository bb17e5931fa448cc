#pragma once
/// @file
/// A sink that records what the state of a job asks of its server.

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/rendezvous/server_state/request_handler.hpp"

namespace rendezvous_test {

using namespace dtrain::rendezvous;

struct RecordingSink final : JobSink {
  struct Message {
    SessionId session;
    std::variant<ToRank, ValueResponse> content;
  };
  /// A message, or the line of another event: "100 close", "joined 0 a".
  using Event = std::variant<Message, std::string>;

  void send(SessionId session, ToRank message) override { events.emplace_back(Message{session, std::move(message)}); }
  void send(SessionId session, ValueResponse message) override {
    events.emplace_back(Message{session, std::move(message)});
  }
  void close_after_sending(SessionId session) override { events.emplace_back(std::to_string(session) + " close"); }
  void on_joined(int rank, const std::string& host) override {
    events.emplace_back("joined " + std::to_string(rank) + " " + host);
  }
  void on_left(int rank) override { events.emplace_back("left " + std::to_string(rank)); }
  void on_failure(const dtrain::Cause& cause) override { events.emplace_back("failed: " + cause.sentence()); }
  void warn(const std::string& sentence) override { events.emplace_back("doubt: " + sentence); }

  std::vector<Event> take() { return std::exchange(events, {}); }

  std::vector<Event> events;
};

}  // namespace rendezvous_test
