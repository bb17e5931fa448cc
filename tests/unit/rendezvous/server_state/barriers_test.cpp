#include "dtrain/rendezvous/server_state/barriers.hpp"
#include "unit/rendezvous/prelude.hpp"

using ArrivalResult = Barriers::ArrivalResult;

namespace {

Barriers::Instant at(int seconds) {
  return Barriers::Instant(std::chrono::seconds(seconds));
}

}  // namespace

TEST_CASE("the last arrival releases the round, and the name opens the next one") {
  Barriers barriers(3);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    CAPTURE(round);
    std::vector<RequestKey> released;
    CHECK(barriers.arrive("x", 1, {11, round}, at(0), released) == ArrivalResult::waiting);
    CHECK(barriers.arrive("y", 0, {10, 100 + round}, at(0), released) ==
          (round == 1 ? ArrivalResult::waiting : ArrivalResult::already_there));
    CHECK(barriers.arrive("x", 0, {10, round}, at(0), released) == ArrivalResult::waiting);
    CHECK(released.empty());
    CHECK(barriers.arrive("x", 2, {12, round}, at(0), released) == ArrivalResult::completed);
    CHECK(released == std::vector<RequestKey>{{10, round}, {11, round}, {12, round}});
  }
  CHECK(barriers.size() == 1);  // y alone is remembered
}

TEST_CASE("who gives up is told who came, and no longer counts") {
  Barriers barriers(3);
  std::vector<RequestKey> released;
  barriers.arrive("x", 0, {10, 1}, at(5), released);
  barriers.arrive("x", 2, {12, 1}, at(9), released);
  CHECK(barriers.waited_by(12) == "x");
  const auto unfinished = barriers.cancel({12, 1});
  REQUIRE(unfinished);
  CHECK(unfinished->name == "x");
  CHECK(unfinished->arrived == std::vector<int>{0, 2});
  CHECK(unfinished->missing == std::vector<int>{1});
  CHECK(unfinished->cancelled.empty());
  CHECK(unfinished->since == at(5));
  CHECK_FALSE(barriers.cancel({12, 1}));
  CHECK_FALSE(barriers.waited_by(12));
  CHECK(barriers.arrive("x", 1, {11, 1}, at(0), released) == ArrivalResult::waiting);
  CHECK(barriers.arrive("x", 2, {12, 2}, at(0), released) == ArrivalResult::completed);
  CHECK(released.size() == 3);
  CHECK_FALSE(barriers.cancel({12, 2}));
}

TEST_CASE("a rank cannot arrive twice in one round") {
  Barriers barriers(2);
  std::vector<RequestKey> released;
  CHECK(barriers.arrive("x", 0, {10, 1}, at(0), released) == ArrivalResult::waiting);
  CHECK(barriers.arrive("x", 0, {10, 2}, at(0), released) == ArrivalResult::already_there);
  CHECK_FALSE(barriers.cancel({10, 2}));
  CHECK(barriers.arrive("x", 1, {11, 1}, at(0), released) == ArrivalResult::completed);
  CHECK(released.size() == 2);
}

TEST_CASE("a session that is forgotten waits nowhere, and a world of one never waits") {
  Barriers barriers(2);
  std::vector<RequestKey> released;
  barriers.arrive("x", 0, {10, 1}, at(0), released);
  barriers.arrive("y", 0, {10, 2}, at(0), released);
  barriers.arrive("z", 1, {11, 2}, at(0), released);
  barriers.forget(10);
  CHECK(barriers.size() == 1);
  const auto waiting = barriers.clear();
  REQUIRE(waiting.size() == 1);
  CHECK(waiting.front().second == "z");
  CHECK(barriers.size() == 0);
  Barriers alone(1);
  CHECK(alone.arrive("x", 0, {1, 1}, at(0), released) == ArrivalResult::completed);
  CHECK(alone.size() == 0);
}

TEST_CASE("those who give up one after the other are not taken for missing") {
  Barriers barriers(4);
  std::vector<RequestKey> released;
  for (const int rank : {0, 1, 2}) {
    barriers.arrive("x", rank, {10 + static_cast<std::uint64_t>(rank), 1}, at(rank), released);
  }
  CHECK(barriers.cancel({10, 1})->missing == std::vector<int>{3});
  const auto second = barriers.cancel({11, 1});
  CHECK(second->arrived == std::vector<int>{1, 2});
  CHECK(second->missing == std::vector<int>{3});
  CHECK(second->cancelled == std::vector<int>{0});
  barriers.arrive("x", 0, {10, 2}, at(9), released);
  CHECK(barriers.cancel({12, 1})->cancelled == std::vector<int>{1});
  CHECK(barriers.size() == 1);
  barriers.cancel({10, 2});
  CHECK(barriers.size() == 0);
}

TEST_CASE("a barrier of some ranks is complete without the others, and what it lacks are its own") {
  const RankSet members = RankSet::of({1, 3, 5});
  Barriers barriers(8);
  std::vector<RequestKey> released;
  CHECK(barriers.arrive("x", 1, {11, 1}, at(0), released, members) == ArrivalResult::waiting);
  CHECK(barriers.arrive("x", 5, {15, 1}, at(0), released, members) == ArrivalResult::waiting);
  CHECK(barriers.members_of("x") == members);
  const auto unfinished = barriers.cancel({15, 1});
  REQUIRE(unfinished);
  CHECK(unfinished->arrived == std::vector<int>{1, 5});
  CHECK(unfinished->missing == std::vector<int>{3});
  CHECK(unfinished->members == 3);
  CHECK(barriers.arrive("x", 5, {15, 2}, at(0), released, members) == ArrivalResult::waiting);
  CHECK(barriers.arrive("x", 3, {13, 1}, at(0), released, members) == ArrivalResult::completed);
  CHECK(released == std::vector<RequestKey>{{11, 1}, {13, 1}, {15, 2}});
  CHECK(barriers.size() == 0);
}

TEST_CASE("one name is one barrier: who comes to it as one of other ranks is no party") {
  Barriers barriers(4);
  std::vector<RequestKey> released;
  CHECK(barriers.arrive("x", 0, {10, 1}, at(0), released, RankSet::of({0, 2})) == ArrivalResult::waiting);
  CHECK(barriers.arrive("x", 1, {11, 1}, at(0), released) == ArrivalResult::other_members);
  CHECK(barriers.arrive("x", 2, {12, 1}, at(0), released, RankSet::of({1, 2})) == ArrivalResult::other_members);
  CHECK_FALSE(barriers.cancel({11, 1}));
  CHECK(barriers.arrive("x", 2, {12, 2}, at(0), released, RankSet::of({0, 2})) == ArrivalResult::completed);
  CHECK(barriers.arrive("x", 1, {11, 2}, at(0), released) == ArrivalResult::waiting);  // the name is free again
}

TEST_CASE("who is gone ends the barriers that it has a part in, and no others") {
  Barriers barriers(4);
  std::vector<RequestKey> released;
  barriers.arrive("even", 0, {10, 1}, at(0), released, RankSet::of({0, 2}));
  barriers.arrive("odd", 1, {11, 1}, at(0), released, RankSet::of({1, 3}));
  barriers.arrive("all", 1, {11, 2}, at(0), released);
  CHECK(barriers.ranges_of(11) == 2);
  CHECK(barriers.ranges_of(12) == 0);
  CHECK(barriers.clear_those_of(3) == std::vector<RequestKey>{{11, 1}, {11, 2}});
  CHECK(barriers.size() == 1);
  CHECK(barriers.waited_by(10) == "even");
}
