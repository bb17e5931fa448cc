#include "dtrain/rendezvous/barriers.hpp"

#include <doctest/doctest.h>

#include <vector>

using dtrain::rendezvous::Barriers;
using dtrain::rendezvous::RequestKey;
using Arrival = Barriers::Arrival;

TEST_CASE("the last arrival releases the round, and the name opens the next one") {
  Barriers barriers(3);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    CAPTURE(round);
    std::vector<RequestKey> released;
    CHECK(barriers.arrive("x", 1, {11, round}, released) == Arrival::waiting);
    CHECK(barriers.arrive("y", 0, {10, 100 + round}, released) ==
          (round == 1 ? Arrival::waiting : Arrival::already_there));
    CHECK(barriers.arrive("x", 0, {10, round}, released) == Arrival::waiting);
    CHECK(released.empty());
    CHECK(barriers.arrive("x", 2, {12, round}, released) == Arrival::completed);
    CHECK(released == std::vector<RequestKey>{{10, round}, {11, round}, {12, round}});
  }
  CHECK(barriers.size() == 1);  // y alone is remembered
}

TEST_CASE("who gives up is told who came, and no longer counts") {
  Barriers barriers(3);
  std::vector<RequestKey> released;
  barriers.arrive("x", 0, {10, 1}, released);
  barriers.arrive("x", 2, {12, 1}, released);
  CHECK(barriers.waited_by(12) == "x");
  const auto unfinished = barriers.cancel({12, 1});
  REQUIRE(unfinished);
  CHECK(unfinished->name == "x");
  CHECK(unfinished->arrived == std::vector<int>{0, 2});
  CHECK(unfinished->missing == std::vector<int>{1});
  CHECK_FALSE(barriers.cancel({12, 1}));
  CHECK_FALSE(barriers.waited_by(12));
  CHECK(barriers.arrive("x", 1, {11, 1}, released) == Arrival::waiting);
  CHECK(barriers.arrive("x", 2, {12, 2}, released) == Arrival::completed);
  CHECK(released.size() == 3);
  CHECK_FALSE(barriers.cancel({12, 2}));
}

TEST_CASE("a rank cannot arrive twice in one round") {
  Barriers barriers(2);
  std::vector<RequestKey> released;
  CHECK(barriers.arrive("x", 0, {10, 1}, released) == Arrival::waiting);
  CHECK(barriers.arrive("x", 0, {10, 2}, released) == Arrival::already_there);
  CHECK_FALSE(barriers.cancel({10, 2}));
  CHECK(barriers.arrive("x", 1, {11, 1}, released) == Arrival::completed);
  CHECK(released.size() == 2);
}

TEST_CASE("a session that is forgotten waits nowhere, and a world of one never waits") {
  Barriers barriers(2);
  std::vector<RequestKey> released;
  barriers.arrive("x", 0, {10, 1}, released);
  barriers.arrive("y", 0, {10, 2}, released);
  barriers.arrive("z", 1, {11, 2}, released);
  barriers.forget(10);
  CHECK(barriers.size() == 1);
  const auto waiting = barriers.clear();
  REQUIRE(waiting.size() == 1);
  CHECK(waiting.front().second == "z");
  CHECK(barriers.size() == 0);
  Barriers alone(1);
  CHECK(alone.arrive("x", 0, {1, 1}, released) == Arrival::completed);
  CHECK(alone.size() == 0);
}
