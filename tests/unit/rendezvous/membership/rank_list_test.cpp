#include "dtrain/rendezvous/membership/rank_list.hpp"

#include <doctest/doctest.h>

#include <vector>

using dtrain::rendezvous::rank_list;

TEST_CASE("ranks are listed with their runs joined") {
  CHECK(rank_list({}) == "no rank");
  CHECK(rank_list({3}) == "rank 3");
  CHECK(rank_list({0, 1}) == "ranks 0-1");
  CHECK(rank_list({0, 2}) == "ranks 0 and 2");
  CHECK(rank_list({0, 1, 2, 7, 9, 10}) == "ranks 0-2, 7 and 9-10");
}

TEST_CASE("a long list of ranks is cut and the rest counted") {
  std::vector<int> even;
  for (int rank = 0; rank < 10000; rank += 2) {
    even.push_back(rank);
  }
  CHECK(rank_list(even, 3) == "ranks 0, 2, 4 and 4997 more");
  CHECK(rank_list({0, 2, 4}, 2) == "ranks 0, 2 and 1 more");
}
