#include "dtrain/rendezvous/server_state/request_handler.hpp"

#include "support/allocation_count.hpp"
#include "unit/rendezvous/prelude.hpp"

namespace {

/// A handler whose ranks 0, 1, ... are the sessions 100, 101, ..., and a clock in seconds.
struct Handler {
  explicit Handler(int world_size, Limits limits = {}) : handler(world_size, limits, sink) {
    for (int rank = 0; rank < world_size; ++rank) {
      handler.open(100 + static_cast<SessionId>(rank), rank);
    }
  }

  void ask(SessionId session, RequestKind operation, Strings keys, std::string value = {},
           std::optional<std::string> expected = {}, Strings values = {}) {
    Request request{++last_id, operation, std::move(keys), std::move(value), 0, std::move(expected), std::move(values)};
    handler.receive(session, request, now());
  }
  void meet(SessionId session, const std::string& barrier, std::vector<int> members) {
    Request request{++last_id, RequestKind::barrier, {barrier}, {}, 0, {}, {}, RankSet::of(std::move(members))};
    handler.receive(session, request, now());
  }
  /// A request of dtrain's own.
  void ask_for(const std::string& purpose, SessionId session, RequestKind operation, Strings keys) {
    Request request{++last_id, operation, std::move(keys)};
    request.purpose = purpose;
    handler.receive(session, request, now());
  }
  void take(SessionId session, const std::string& key, std::int64_t readers) {
    Request request{++last_id, RequestKind::take, {key}, {}, readers};
    handler.receive(session, request, now());
  }
  void cancel(SessionId session, std::uint64_t id) { handler.receive(session, Cancel{id}, now()); }

  KeyValueMap::Instant now() const { return KeyValueMap::Instant(std::chrono::seconds(seconds)); }

  /// The answers since the last call: session, request, status, text or values, number.
  Strings seen() {
    Strings lines;
    for (const RecordingSink::Event& event : sink.take()) {
      const auto& [session, content] = std::get<RecordingSink::Message>(event);
      const auto* values = std::get_if<ValueResponse>(&content);
      lines.push_back(values != nullptr ? line_of(session, *values)
                                        : line_of(session, std::get<Response>(std::get<ToRank>(content))));
    }
    return lines;
  }

  template <class Value>
  static std::string line_of(SessionId session, const BasicResponse<Value>& response) {
    std::string line = std::to_string(session) + " " + std::to_string(response.id) + " " +
                       std::to_string(static_cast<int>(response.status)) + " " + text_of(response.text);
    for (const Value& value : response.values) {
      line += "[" + text_of(value) + "]";
    }
    return line + (response.number != 0 ? std::to_string(response.number) : "");
  }
  static std::string text_of(const std::string& value) { return value; }
  static std::string text_of(const SharedValue& value) { return value ? *value : std::string(); }

  RecordingSink sink;
  RequestHandler handler;
  std::uint64_t last_id = 0;
  int seconds = 0;
};

}  // namespace

TEST_CASE("compare_set sets where the value is as expected, and says what there is where it is not") {
  Handler tested(1);
  tested.ask(100, RequestKind::compare_set, {"k"}, "new", "old");
  tested.ask(100, RequestKind::compare_set, {"k"}, "first");
  tested.ask(100, RequestKind::compare_set, {"k"}, "second");
  tested.ask(100, RequestKind::compare_set, {"k"}, "third", "first");
  tested.ask(100, RequestKind::try_get, {"k"});
  CHECK(tested.seen() == Strings{"100 1 2 ", "100 2 1 1", "100 3 1 first", "100 4 1 1", "100 5 1 third"});
}

TEST_CASE("what creates a key answers those who wait for it, whichever operation it is") {
  Handler tested(2);
  for (const RequestKind each :
       {RequestKind::set, RequestKind::append, RequestKind::compare_set, RequestKind::set_many}) {
    CAPTURE(static_cast<int>(each));
    tested.last_id = 0;
    tested.ask(100, RequestKind::get, {"k"});
    tested.ask(100, RequestKind::get_many, {"k", "k"});
    tested.ask(101, each, {"k"}, "v", std::nullopt, {"v"});
    const Strings lines = tested.seen();
    REQUIRE(lines.size() == 3);
    CHECK(lines[0].find("101 3 1 ") == 0);
    CHECK(lines[1] == "100 1 1 v");
    CHECK(lines[2] == "100 2 1 [v][v]");
    tested.ask(101, RequestKind::erase, {"k"});
    tested.ask(101, RequestKind::erase, {"k"});
    CHECK(tested.seen() == Strings{"101 4 1 ", "101 5 2 "});
  }
}

namespace {

/// The bytes that are allocated until every answer of `tested` waits to be sent to its session.
std::size_t bytes_of_answers(Handler& tested, std::vector<std::deque<OutgoingFrame>>& outboxes,
                             const std::function<void()>& answered) {
  const std::size_t before = support::allocated_bytes;
  answered();
  for (RecordingSink::Event& event : tested.sink.events) {
    auto& [session, content] = std::get<RecordingSink::Message>(event);
    std::deque<OutgoingFrame>& outbox = outboxes.at(session - 100);
    std::visit([&](auto& message) { outbox.push_back(encode(std::move(message))); }, content);
  }
  tested.sink.events.clear();
  return support::allocated_bytes - before;
}

}  // namespace

TEST_CASE("a large value is there once, however many ranks wait for it, or get it later") {
  constexpr int world_size = 100;
  Handler tested(world_size);
  std::vector<std::deque<OutgoingFrame>> outboxes(world_size);
  const auto ask_all = [&](RequestKind operation) {
    for (int rank = 0; rank < world_size; ++rank) {
      tested.ask(100 + static_cast<SessionId>(rank), operation, {"k"});
    }
  };
  ask_all(RequestKind::get);
  ask_all(RequestKind::get_many);
  const std::size_t few = 3 * max_value_bytes;
  const std::string large(max_value_bytes, 'x');
  CHECK(bytes_of_answers(tested, outboxes, [&] { tested.ask(100, RequestKind::set, {"k"}, large); }) < few);
  CHECK(bytes_of_answers(tested, outboxes, [&] { ask_all(RequestKind::try_get); }) < few);
  CHECK(bytes_of_answers(tested, outboxes, [&] { ask_all(RequestKind::get); }) < few);
  std::size_t waiting = 0;
  for (const OutgoingFrame& frame : outboxes.back()) {
    waiting += frame.size();
  }
  CHECK(waiting > 4 * max_value_bytes);
}

TEST_CASE("an answer on its way keeps the value as it was when it was given") {
  Handler tested(1);
  tested.ask(100, RequestKind::set, {"k"}, "before");
  tested.ask(100, RequestKind::get, {"k"});
  tested.ask(100, RequestKind::append, {"k"}, ", after");
  tested.ask(100, RequestKind::get, {"k"});
  tested.ask(100, RequestKind::set, {"k"}, "anew");
  CHECK(tested.seen() == Strings{"100 1 1 ", "100 2 1 before", "100 3 1 13", "100 4 1 before, after", "100 5 1 "});
}

TEST_CASE("many waits for one key, of one session and of many, are answered in one batch by one request") {
  Handler tested(3);
  for (int i = 0; i < 300; ++i) {
    tested.ask(100 + static_cast<SessionId>(i % 3), RequestKind::get, {"k"});
  }
  CHECK(tested.seen().empty());
  tested.ask(100, RequestKind::set, {"k"}, "v");
  CHECK(tested.seen().size() == 301);
  CHECK(tested.handler.keys().waits() == 0);
}

TEST_CASE("values that are too many for one answer are refused, when they are there and when they come to be") {
  Handler tested(1);
  const std::string large(max_value_bytes, 'x');
  tested.ask(100, RequestKind::get_many, {"a", "b"});
  tested.ask(100, RequestKind::set, {"a"}, large);
  tested.ask(100, RequestKind::set, {"b"}, large);
  tested.ask(100, RequestKind::get_many, {"a", "b"});
  const Strings lines = tested.seen();
  REQUIRE(lines.size() == 4);
  const std::string refusal =
      " 3 the values of these 2 keys have 2097152 bytes; at most 1049600 are given at once; ask "
      "for fewer keys";
  CHECK(lines[2] == "100 1" + refusal);
  CHECK(lines[3] == "100 4" + refusal);
}

TEST_CASE("one change gives a session no more bytes at once than may wait to be sent to it") {
  Limits limits;
  limits.outgoing_bytes = 40;
  Handler tested(2, limits);
  for (int i = 0; i < 3; ++i) {
    tested.ask(100, RequestKind::get, {"k"});
  }
  tested.ask(101, RequestKind::get, {"k"});
  tested.ask(101, RequestKind::set, {"k"}, "0123456789");
  const Strings lines = tested.seen();
  REQUIRE(lines.size() == 5);
  CHECK(lines[1] == "100 1 1 0123456789");
  CHECK(lines[2] == "100 2 1 0123456789");
  CHECK(lines[3] ==
        "100 3 3 the answers that this rank waits for at once have more than 20 bytes; wait for fewer "
        "values at once");
  CHECK(lines[4] == "101 4 1 0123456789");
}

TEST_CASE("waits of every kind count against the bound of a rank, and not against the others'") {
  Limits limits;
  limits.waited_keys = 3;
  Handler tested(2, limits);
  tested.ask(100, RequestKind::get_many, {"a", "b"});
  tested.ask(100, RequestKind::wait, {"c", "d"});
  CHECK(tested.seen() == Strings{"100 2 3 this rank would wait for more than 3 keys, the limit"});
  tested.ask(101, RequestKind::wait, {"c", "d", "a"});
  CHECK(tested.seen().empty());
  tested.ask(100, RequestKind::set, {"a"}, "");
  tested.ask(100, RequestKind::get, {"d"});
  CHECK(tested.seen() == Strings{"100 4 1 "});
  tested.ask(100, RequestKind::get, {"e"});
  CHECK(tested.seen() == Strings{"100 6 3 this rank would wait for more than 3 keys, the limit"});
}

TEST_CASE("a wait that is given up says which keys are missing and since when") {
  Handler tested(1);
  tested.ask(100, RequestKind::set, {"b"}, "");
  tested.ask(100, RequestKind::get_many, {"a", "b", "c"});
  tested.ask(100, RequestKind::get, {"x\x1b"});
  tested.seconds = 5;
  tested.cancel(100, 2);
  tested.cancel(100, 3);
  CHECK(tested.seen() ==
        Strings{"100 1 1 ", "100 2 4 no rank set 'a', 'c' (2 of 3 keys) in the 5.0 s since this rank began to wait",
                "100 3 4 no rank set 'x\\x1b' in the 5.0 s since this rank began to wait"});
}

TEST_CASE("a request of dtrain's own is named by its purpose, and its keys by nobody") {
  Handler tested(3);
  tested.ask_for("wrapping a model", 100, RequestKind::get, {"ddp/1/summary"});
  tested.ask_for("wrapping a model", 101, RequestKind::barrier, {"ddp/1/agreed"});
  CHECK(tested.handler.doing(100) == "while it waited for other ranks (wrapping a model)");
  CHECK(tested.handler.doing(101) == "while it waited for other ranks (wrapping a model)");
  tested.seconds = 5;
  tested.cancel(100, 1);
  tested.cancel(101, 2);
  CHECK(tested.seen() ==
        Strings{"100 1 4 another rank had not done its part after 5.0 s",
                "101 2 4 1 of 3 ranks wait in it (rank 1, the first came 5.0 s ago); ranks 0 and 2 did not come"});
  CHECK(tested.handler.doing(100) == "while it worked");
}

TEST_CASE(
    "a barrier whose request is cancelled names the ranks that wait, since when, those missing and those cancelled") {
  Handler tested(4);
  tested.ask(102, RequestKind::barrier, {"x"});
  tested.seconds = 2;
  tested.ask(100, RequestKind::barrier, {"x"});
  tested.ask(101, RequestKind::barrier, {"x"});
  tested.seconds = 9;
  tested.cancel(100, 2);
  tested.cancel(101, 3);
  CHECK(tested.seen() ==
        Strings{"100 2 4 3 of 4 ranks wait in it (ranks 0-2, the first came 9.0 s ago); rank 3 did not come",
                "101 3 4 2 of 4 ranks wait in it (ranks 1-2, the first came 9.0 s ago); rank 3 did not come; rank 0 "
                "arrived and cancelled"});
  CHECK(tested.handler.doing(102) == "while it waited in barrier 'x'");
  CHECK(tested.handler.doing(100) == "while it worked");
}

TEST_CASE("a key that is named often in one wait takes as much of the bound as it takes memory") {
  Limits limits;
  limits.waited_keys = 10;
  Handler tested(1, limits);
  for (int i = 0; i < 3; ++i) {
    tested.ask(100, RequestKind::wait, Strings(4, "k"));
  }
  const Strings answers = tested.seen();
  REQUIRE(answers.size() == 1);
  CHECK_CONTAINS(answers.front(), "more than 10 keys, the limit");
  tested.ask(100, RequestKind::set, {"k"});
  CHECK(tested.seen().size() == 3);
  tested.ask(100, RequestKind::wait, Strings(10, "l"));
  CHECK(tested.seen().empty());  // what has ended no longer counts
}

TEST_CASE("a barrier of a part is its ranks' alone, and its sentences name them as the job does") {
  Handler tested(6);
  tested.meet(101, "x", {1, 3, 5});
  tested.seconds = 2;
  tested.meet(105, "x", {1, 3, 5});
  tested.cancel(101, 1);
  CHECK(tested.seen() ==
        Strings{"101 1 4 2 of 3 ranks wait in it (ranks 1 and 5, the first came 2.0 s ago); rank 3 did "
                "not come"});
  tested.meet(103, "x", {1, 3, 5});
  CHECK(tested.seen().empty());  // rank 1 has cancelled and counts no longer
  tested.meet(101, "x", {1, 3, 5});
  CHECK(tested.seen() == Strings{"101 4 1 ", "103 3 1 ", "105 2 1 "});
}

TEST_CASE("who leaves ends the barriers of its parts, now and later; those of other ranks go on") {
  Handler tested(4);
  tested.meet(101, "odd", {1, 3});
  tested.meet(100, "even", {0, 2});
  tested.ask(100, RequestKind::barrier, {"all"});
  tested.handler.close(103);
  tested.handler.refuse_barriers(3);
  CHECK(tested.seen() ==
        Strings{"100 3 3 it cannot complete: rank 3 left the job", "101 1 3 it cannot complete: rank 3 left the job"});
  tested.meet(101, "odd", {1, 3});
  CHECK(tested.seen() == Strings{"101 4 3 it cannot complete: rank 3 left the job"});
  tested.meet(102, "even", {0, 2});
  CHECK(tested.seen() == Strings{"100 2 1 ", "102 5 1 "});
}

TEST_CASE("a barrier is refused to who is not of its ranks, to ranks beyond the job and to other ranks of its name") {
  Handler tested(4);
  tested.meet(100, "x", {1, 3});
  tested.meet(101, "x", {1, 7});
  tested.meet(101, "x", {1, 3});
  tested.ask(100, RequestKind::barrier, {"x"});
  CHECK(tested.seen() ==
        Strings{"100 1 3 it is a barrier of ranks 1 and 3 in a job of 4, and rank 0 called it",
                "101 2 3 it is a barrier of ranks 1 and 7 in a job of 4, and rank 1 called it",
                "100 4 3 other ranks wait in a barrier of this name: ranks 1 and 3; give one of the two another name"});
}

TEST_CASE("the ranks of the barriers that one session waits in have a bound together") {
  Limits limits;
  limits.barrier_ranges = 3;
  Handler tested(9, limits);
  tested.meet(100, "x", {0, 2, 7});
  tested.meet(100, "y", {0, 2, 7});
  CHECK(tested.seen() == Strings{"100 2 3 this rank would wait in barriers of more than 3 ranges of ranks, the limit"});
  tested.cancel(100, 1);
  static_cast<void>(tested.seen());
  tested.meet(100, "y", {0, 2, 7});
  CHECK(tested.seen().empty());
}

TEST_CASE("a key is gone once it was taken as often as it is to be, whoever came first") {
  Handler tested(4);
  tested.take(101, "k", 3);
  tested.take(102, "k", 3);
  CHECK(tested.seen().empty());
  tested.ask(100, RequestKind::set, {"k"}, "v");
  CHECK(tested.seen() == Strings{"100 3 1 ", "101 1 1 v", "102 2 1 v"});
  CHECK(tested.handler.keys().size() == 1);
  tested.take(103, "k", 3);
  CHECK(tested.seen() == Strings{"103 4 1 v"});
  CHECK(tested.handler.keys().size() == 0);
  CHECK(tested.handler.keys().bytes() == 0);
  tested.take(101, "k", 1);
  tested.take(102, "k", 1);  // one more than is said: both wait, and both get it
  tested.ask(103, RequestKind::get, {"k"});
  tested.ask(100, RequestKind::set, {"k"}, "w");
  CHECK(tested.seen() == Strings{"100 8 1 ", "101 5 1 w", "102 6 1 w", "103 7 1 w"});
  CHECK(tested.handler.keys().size() == 0);
}

TEST_CASE("a take that is given up does not count, and a value that is replaced is taken anew") {
  Handler tested(3);
  tested.take(101, "k", 2);
  tested.cancel(101, 1);
  tested.ask(100, RequestKind::set, {"k"}, "old");
  tested.take(102, "k", 2);
  tested.ask(100, RequestKind::set, {"k"}, "new");
  tested.take(101, "k", 2);
  CHECK(tested.handler.keys().size() == 1);
  tested.take(102, "k", 2);
  CHECK(tested.seen() == Strings{"101 1 4 no rank set 'k' in the 0.0 s since this rank began to wait", "100 2 1 ",
                                 "102 3 1 old", "100 4 1 ", "101 5 1 new", "102 6 1 new"});
  CHECK(tested.handler.keys().size() == 0);
}
