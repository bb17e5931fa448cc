#include "dtrain/rendezvous/request_desk.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/rendezvous/codec.hpp"
#include "support/allocation_count.hpp"

using namespace dtrain::rendezvous;

namespace {

using Strings = std::vector<std::string>;

/// A desk whose ranks 0, 1, ... are the sessions 100, 101, ..., and a clock in seconds.
struct Desk {
  explicit Desk(int world_size, Limits limits = {}) : desk(world_size, limits, effects) {
    for (int rank = 0; rank < world_size; ++rank) {
      desk.open(100 + static_cast<SessionId>(rank), rank);
    }
  }

  void ask(SessionId session, Operation operation, Strings keys, std::string value = {},
           std::optional<std::string> expected = {}, Strings values = {}) {
    Request request{++last_id, operation, std::move(keys), std::move(value), 0, std::move(expected), std::move(values)};
    desk.receive(session, request, now());
  }
  void meet(SessionId session, const std::string& barrier, std::vector<int> parties) {
    Request request{++last_id, Operation::barrier, {barrier}, {}, 0, {}, {}, RankSet::of(std::move(parties))};
    desk.receive(session, request, now());
  }
  void take(SessionId session, const std::string& key, std::int64_t readers) {
    Request request{++last_id, Operation::take, {key}, {}, readers};
    desk.receive(session, request, now());
  }
  void cancel(SessionId session, std::uint64_t id) { desk.receive(session, Cancel{id}, now()); }

  KeyWaits::Instant now() const { return KeyWaits::Instant(std::chrono::seconds(seconds)); }

  /// The answers since the last call: session, request, status, text or values, number.
  Strings seen() {
    Strings lines;
    for (const Effect& effect : effects) {
      if (const auto* values = std::get_if<SendValues>(&effect)) {
        lines.push_back(line_of(values->session, values->message));
      } else {
        const Send& send = std::get<Send>(effect);
        lines.push_back(line_of(send.session, std::get<Response>(send.message)));
      }
    }
    effects.clear();
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

  std::vector<Effect> effects;
  RequestDesk desk;
  std::uint64_t last_id = 0;
  int seconds = 0;
};

}  // namespace

TEST_CASE("compare_set sets where the value is as expected, and says what there is where it is not") {
  Desk table(1);
  table.ask(100, Operation::compare_set, {"k"}, "new", "old");
  table.ask(100, Operation::compare_set, {"k"}, "first");
  table.ask(100, Operation::compare_set, {"k"}, "second");
  table.ask(100, Operation::compare_set, {"k"}, "third", "first");
  table.ask(100, Operation::try_get, {"k"});
  CHECK(table.seen() == Strings{"100 1 2 ", "100 2 1 1", "100 3 1 first", "100 4 1 1", "100 5 1 third"});
}

TEST_CASE("what creates a key answers those who wait for it, whichever operation it is") {
  Desk table(2);
  for (const Operation each : {Operation::set, Operation::append, Operation::compare_set, Operation::set_many}) {
    CAPTURE(static_cast<int>(each));
    table.last_id = 0;
    table.ask(100, Operation::get, {"k"});
    table.ask(100, Operation::get_many, {"k", "k"});
    table.ask(101, each, {"k"}, "v", std::nullopt, {"v"});
    const Strings lines = table.seen();
    REQUIRE(lines.size() == 3);
    CHECK(lines[0].find("101 3 1 ") == 0);
    CHECK(lines[1] == "100 1 1 v");
    CHECK(lines[2] == "100 2 1 [v][v]");
    table.ask(101, Operation::erase, {"k"});
    table.ask(101, Operation::erase, {"k"});
    CHECK(table.seen() == Strings{"101 4 1 ", "101 5 2 "});
  }
}

namespace {

/// The bytes that are allocated until every answer of `table` waits to be sent to its session.
std::size_t bytes_of_answers(Desk& table, std::vector<Outbox>& outboxes, const std::function<void()>& answered) {
  const std::size_t before = support::allocated_bytes;
  answered();
  for (Effect& effect : table.effects) {
    const auto push = [&](auto& send) {
      if constexpr (requires { send.message; }) {
        CHECK(outboxes.at(send.session - 100).push(encode(std::move(send.message))));
      }
    };
    std::visit(push, effect);
  }
  table.effects.clear();
  return support::allocated_bytes - before;
}

}  // namespace

TEST_CASE("a large value is there once, however many ranks wait for it, or get it later") {
  constexpr int world_size = 100;
  Desk table(world_size);
  std::vector<Outbox> outboxes(world_size, Outbox(max_value_bytes * 8, max_value_bytes * 4));
  const auto ask_all = [&](Operation operation) {
    for (int rank = 0; rank < world_size; ++rank) {
      table.ask(100 + static_cast<SessionId>(rank), operation, {"k"});
    }
  };
  ask_all(Operation::get);
  ask_all(Operation::get_many);
  const std::size_t few = 3 * max_value_bytes;
  const std::string large(max_value_bytes, 'x');
  CHECK(bytes_of_answers(table, outboxes, [&] { table.ask(100, Operation::set, {"k"}, large); }) < few);
  CHECK(bytes_of_answers(table, outboxes, [&] { ask_all(Operation::try_get); }) < few);
  CHECK(bytes_of_answers(table, outboxes, [&] { ask_all(Operation::get); }) < few);
  CHECK(outboxes.back().waiting_bytes() > 4 * max_value_bytes);
}

TEST_CASE("an answer on its way keeps the value as it was when it was given") {
  Desk table(1);
  table.ask(100, Operation::set, {"k"}, "before");
  table.ask(100, Operation::get, {"k"});
  table.ask(100, Operation::append, {"k"}, ", after");
  table.ask(100, Operation::get, {"k"});
  table.ask(100, Operation::set, {"k"}, "anew");
  CHECK(table.seen() == Strings{"100 1 1 ", "100 2 1 before", "100 3 1 13", "100 4 1 before, after", "100 5 1 "});
}

TEST_CASE("many waits for one key, of one session and of many, are answered in one batch by one request") {
  Desk table(3);
  for (int i = 0; i < 300; ++i) {
    table.ask(100 + static_cast<SessionId>(i % 3), Operation::get, {"k"});
  }
  CHECK(table.seen().empty());
  table.ask(100, Operation::set, {"k"}, "v");
  CHECK(table.seen().size() == 301);
  CHECK(table.desk.keys().waits().size() == 0);
}

TEST_CASE("values that are too many for one answer are refused, when they are there and when they come to be") {
  Desk table(1);
  const std::string large(max_value_bytes, 'x');
  table.ask(100, Operation::get_many, {"a", "b"});
  table.ask(100, Operation::set, {"a"}, large);
  table.ask(100, Operation::set, {"b"}, large);
  table.ask(100, Operation::get_many, {"a", "b"});
  const Strings lines = table.seen();
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
  Desk table(2, limits);
  for (int i = 0; i < 3; ++i) {
    table.ask(100, Operation::get, {"k"});
  }
  table.ask(101, Operation::get, {"k"});
  table.ask(101, Operation::set, {"k"}, "0123456789");
  const Strings lines = table.seen();
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
  Desk table(2, limits);
  table.ask(100, Operation::get_many, {"a", "b"});
  table.ask(100, Operation::wait, {"c", "d"});
  CHECK(table.seen() == Strings{"100 2 3 this rank would wait for more than 3 keys, the limit"});
  table.ask(101, Operation::wait, {"c", "d", "a"});
  CHECK(table.seen().empty());
  table.ask(100, Operation::set, {"a"}, "");
  table.ask(100, Operation::get, {"d"});
  CHECK(table.seen() == Strings{"100 4 1 "});
  table.ask(100, Operation::get, {"e"});
  CHECK(table.seen() == Strings{"100 6 3 this rank would wait for more than 3 keys, the limit"});
}

TEST_CASE("a wait that is given up says which keys are missing and since when") {
  Desk table(1);
  table.ask(100, Operation::set, {"b"}, "");
  table.ask(100, Operation::get_many, {"a", "b", "c"});
  table.ask(100, Operation::get, {"x\x1b"});
  table.seconds = 5;
  table.cancel(100, 2);
  table.cancel(100, 3);
  CHECK(table.seen() == Strings{"100 1 1 ",
                                "100 2 4 no rank set 'a', 'c' (2 of 3 keys) in the 5.0 s since this rank began to wait",
                                "100 3 4 no rank set 'x\\x1b' in the 5.0 s since this rank began to wait"});
}

TEST_CASE("a barrier that is given up says who waits, since when, who did not come and who gave up") {
  Desk table(4);
  table.ask(102, Operation::barrier, {"x"});
  table.seconds = 2;
  table.ask(100, Operation::barrier, {"x"});
  table.ask(101, Operation::barrier, {"x"});
  table.seconds = 9;
  table.cancel(100, 2);
  table.cancel(101, 3);
  CHECK(table.seen() ==
        Strings{"100 2 4 3 of 4 ranks wait in it (ranks 0-2, the first came 9.0 s ago); rank 3 did not come",
                "101 3 4 2 of 4 ranks wait in it (ranks 1-2, the first came 9.0 s ago); rank 3 did not come; rank 0 "
                "came and gave up"});
  CHECK(table.desk.doing(102) == "while it waited in barrier 'x'");
  CHECK(table.desk.doing(100) == "while it worked");
}

TEST_CASE("a key that is named often in one wait takes as much of the bound as it takes memory") {
  Limits limits;
  limits.waited_keys = 10;
  Desk table(1, limits);
  for (int i = 0; i < 3; ++i) {
    table.ask(100, Operation::wait, Strings(4, "k"));
  }
  const Strings answers = table.seen();
  REQUIRE(answers.size() == 1);
  CHECK(answers.front().find("more than 10 keys, the limit") != std::string::npos);
  table.ask(100, Operation::set, {"k"});
  CHECK(table.seen().size() == 3);
  table.ask(100, Operation::wait, Strings(10, "l"));
  CHECK(table.seen().empty());  // what has ended no longer counts
}

TEST_CASE("a barrier of a part is its ranks' alone, and its sentences name them as the job does") {
  Desk table(6);
  table.meet(101, "x", {1, 3, 5});
  table.seconds = 2;
  table.meet(105, "x", {1, 3, 5});
  table.cancel(101, 1);
  CHECK(table.seen() == Strings{"101 1 4 2 of 3 ranks wait in it (ranks 1 and 5, the first came 2.0 s ago); rank 3 did "
                                "not come"});
  table.meet(103, "x", {1, 3, 5});
  CHECK(table.seen().empty());  // rank 1 has given up and counts no longer
  table.meet(101, "x", {1, 3, 5});
  CHECK(table.seen() == Strings{"101 4 1 ", "103 3 1 ", "105 2 1 "});
}

TEST_CASE("who leaves ends the barriers of its parts, now and later; those of other ranks go on") {
  Desk table(4);
  table.meet(101, "odd", {1, 3});
  table.meet(100, "even", {0, 2});
  table.ask(100, Operation::barrier, {"all"});
  table.desk.close(103);
  table.desk.refuse_barriers(3);
  CHECK(table.seen() ==
        Strings{"100 3 3 it cannot complete: rank 3 left the job", "101 1 3 it cannot complete: rank 3 left the job"});
  table.meet(101, "odd", {1, 3});
  CHECK(table.seen() == Strings{"101 4 3 it cannot complete: rank 3 left the job"});
  table.meet(102, "even", {0, 2});
  CHECK(table.seen() == Strings{"100 2 1 ", "102 5 1 "});
}

TEST_CASE("a barrier is refused to who is not of its ranks, to ranks beyond the job and to other ranks of its name") {
  Desk table(4);
  table.meet(100, "x", {1, 3});
  table.meet(101, "x", {1, 7});
  table.meet(101, "x", {1, 3});
  table.ask(100, Operation::barrier, {"x"});
  CHECK(table.seen() ==
        Strings{"100 1 3 it is one of ranks 1 and 3 of a job of 4, and rank 0 came to it",
                "101 2 3 it is one of ranks 1 and 7 of a job of 4, and rank 1 came to it",
                "100 4 3 other ranks wait in one of this name: ranks 1 and 3; name one of them otherwise"});
}

TEST_CASE("the ranks of the barriers that one session waits in have a bound together") {
  Limits limits;
  limits.party_runs = 3;
  Desk table(9, limits);
  table.meet(100, "x", {0, 2, 7});
  table.meet(100, "y", {0, 2, 7});
  CHECK(table.seen() == Strings{"100 2 3 this rank would wait in barriers of more than 3 runs of ranks, the limit"});
  table.cancel(100, 1);
  static_cast<void>(table.seen());
  table.meet(100, "y", {0, 2, 7});
  CHECK(table.seen().empty());
}

TEST_CASE("a key is gone once it was taken as often as it is to be, whoever came first") {
  Desk table(4);
  table.take(101, "k", 3);
  table.take(102, "k", 3);
  CHECK(table.seen().empty());
  table.ask(100, Operation::set, {"k"}, "v");
  CHECK(table.seen() == Strings{"100 3 1 ", "101 1 1 v", "102 2 1 v"});
  CHECK(table.desk.keys().size() == 1);
  table.take(103, "k", 3);
  CHECK(table.seen() == Strings{"103 4 1 v"});
  CHECK(table.desk.keys().size() == 0);
  CHECK(table.desk.keys().bytes() == 0);
  table.take(101, "k", 1);
  table.take(102, "k", 1);  // one more than is said: both wait, and both get it
  table.ask(103, Operation::get, {"k"});
  table.ask(100, Operation::set, {"k"}, "w");
  CHECK(table.seen() == Strings{"100 8 1 ", "101 5 1 w", "102 6 1 w", "103 7 1 w"});
  CHECK(table.desk.keys().size() == 0);
}

TEST_CASE("a take that is given up does not count, and a value that is replaced is taken anew") {
  Desk table(3);
  table.take(101, "k", 2);
  table.cancel(101, 1);
  table.ask(100, Operation::set, {"k"}, "old");
  table.take(102, "k", 2);
  table.ask(100, Operation::set, {"k"}, "new");
  table.take(101, "k", 2);
  CHECK(table.desk.keys().size() == 1);
  table.take(102, "k", 2);
  CHECK(table.seen() == Strings{"101 1 4 no rank set 'k' in the 0.0 s since this rank began to wait", "100 2 1 ",
                                "102 3 1 old", "100 4 1 ", "101 5 1 new", "102 6 1 new"});
  CHECK(table.desk.keys().size() == 0);
}
