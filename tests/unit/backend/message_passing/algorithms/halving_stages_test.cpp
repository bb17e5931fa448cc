#include "dtrain/backend/message_passing/algorithms/halving_stages.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using dtrain::backend::message_passing::HalvingStages;

std::vector<int> factors(int ranks) {
  const HalvingStages stages(ranks);
  std::vector<int> all;
  for (std::size_t stage = 0; stage < stages.count(); ++stage)
    all.push_back(stages.factor(stage));
  return all;
}

TEST_CASE("the stages' factors are the prime factors up to 7 of the participants' number, the smallest first") {
  using Factors = std::vector<int>;
  CHECK(factors(1) == Factors{});
  CHECK(factors(2) == Factors{2});
  CHECK(factors(7) == Factors{7});
  CHECK(factors(12) == Factors{2, 2, 3});
  CHECK(factors(13) == Factors{2, 2, 3});
  CHECK(factors(33) == Factors{2, 2, 2, 2, 2});
  CHECK(factors(48) == Factors{2, 2, 2, 2, 3});
  CHECK(factors(1024) == Factors(10, 2));
  CHECK(HalvingStages(48).extra_ranks() == 0);
  CHECK(HalvingStages(33).extra_ranks() == 1);
  CHECK(HalvingStages(11).extra_ranks() == 1);
}

TEST_CASE("participants keep different blocks, which cover all, and at most every second rank takes no part") {
  for (int ranks = 2; ranks <= 200; ++ranks) {
    CAPTURE(ranks);
    const HalvingStages stages(ranks);
    CHECK(2 * stages.extra_ranks() <= ranks);
    std::set<std::size_t> blocks;
    int participants = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      if (!stages.takes_part(rank)) continue;
      const int self = stages.participant(rank);
      CHECK(stages.rank(self) == rank);
      CHECK(self == participants);
      ++participants;
      std::size_t block = 0;
      for (std::size_t stage = 0; stage < stages.count(); ++stage)
        block += static_cast<std::size_t>(stages.position(self, stage)) * stages.blocks(stage);
      blocks.insert(block);
    }
    CHECK(participants == stages.participants());
    CHECK(blocks.size() == static_cast<std::size_t>(participants));
    CHECK(*blocks.rbegin() + 1 == blocks.size());
  }
}

TEST_CASE("a group's participants differ in one position only") {
  const HalvingStages stages(24);
  for (int self = 0; self < 24; ++self) {
    for (std::size_t stage = 0; stage < stages.count(); ++stage) {
      const int first = self - stages.position(self, stage) * stages.distance(stage);
      for (int other = 0; other < stages.factor(stage); ++other) {
        const int peer = first + other * stages.distance(stage);
        for (std::size_t s = 0; s < stages.count(); ++s)
          CHECK(stages.position(peer, s) == (s == stage ? other : stages.position(self, s)));
      }
    }
  }
}

}  // namespace
