#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "unit/rendezvous/prelude.hpp"

TEST_CASE("the usual parts of a job are one run each") {
  std::vector<int> eighth;
  std::vector<int> node;
  for (int i = 0; i < 1250; ++i) {
    eighth.push_back(3 + 8 * i);
    node.push_back(9000 + i);
  }
  CHECK(RankSet::of(eighth).ranges == std::vector<RankSet::RankRange>{{3, 8, 1249}});
  CHECK(RankSet::of(node).ranges == std::vector<RankSet::RankRange>{{9000, 1, 1249}});
  CHECK(RankSet::of({7}).ranges == std::vector<RankSet::RankRange>{{7, 1, 0}});
  CHECK(RankSet::of({4, 2}).ranges == std::vector<RankSet::RankRange>{{2, 2, 1}});
  CHECK(RankSet::first_of(3).ranks() == std::vector<int>{0, 1, 2});
  CHECK(RankSet::of({}).ranges.empty());
  CHECK(RankSet::of({}).last() == -1);
}

TEST_CASE("whatever the ranks, the set has these and no others") {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    std::vector<int> ranks;
    for (int rank = 0; rank < 60; ++rank) {
      if (random() % 3 != 0) ranks.push_back(rank);
    }
    std::vector<int> shuffled = ranks;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    const RankSet set = RankSet::of(shuffled);
    CHECK(set.ranks() == ranks);
    CHECK(set.size() == ranks.size());
    CHECK(set == RankSet::of(ranks));
    CHECK(set.last() == (ranks.empty() ? -1 : ranks.back()));
    for (int rank = -1; rank < 61; ++rank) {
      CHECK(set.contains(rank) == (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()));
    }
    for (std::size_t i = 1; i < set.ranges.size(); ++i) {
      CHECK(set.ranges[i].first > set.ranges[i - 1].last());
    }
  }
}

TEST_CASE("ranks are listed with their runs joined") {
  CHECK(rank_list({}) == "no rank");
  CHECK(rank_list({3}) == "rank 3");
  CHECK(rank_list({0, 1}) == "ranks 0-1");
  CHECK(rank_list({0, 2}) == "ranks 0 and 2");
  CHECK(rank_list({0, 2}, 16, "worker") == "workers 0 and 2");
  CHECK(rank_list({}, 16, "worker") == "no worker");
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
