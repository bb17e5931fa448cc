#include "dtrain/backend/channel_setup/split.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using dtrain::backend::ColorAndKey;

using Communicator = dtrain::backend::SharedMemory::Communicator;

/// The sum over the ranks of a channel of 10 to the power of each one's `rank`.
double sum_over(Communicator& communicator, SharedMemoryRank& self, int rank) {
  double value = 1;
  for (int i = 0; i < rank; ++i) {
    value *= 10;
  }
  const BufferView view{reinterpret_cast<std::byte*>(&value), 1, DType::f64, {}};
  communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
  return self.wait() && !communicator.failure() ? value : -1;
}

TEST_CASE("ranks are ordered by key, then by rank, among those of their color") {
  const std::vector<ColorAndKey> choices{{0, 5}, {1, 0}, {0, -1}, {0, 5}, {1, 0}};
  CHECK(dtrain::backend::ranks_of_color(choices, 0) == std::vector<int>{2, 0, 3});
  CHECK(dtrain::backend::ranks_of_color(choices, 4) == std::vector<int>{1, 4});
}

TEST_CASE("what ranks say of a split is written and read without loss, and anything else is refused") {
  const std::vector<ColorAndKey> choices{{0, 5}, {2'147'483'647, -2'147'483'647}};
  const auto read = dtrain::from_bytes<ColorAndKey>(dtrain::to_bytes(choices[1]), "a choice");
  CHECK(read.color == choices[1].color);
  CHECK(read.key == choices[1].key);
  const std::string bytes = dtrain::to_bytes(choices[0]);
  for (const std::string& text : {std::string(), bytes.substr(1), bytes + "1", std::string("1 2 "), bytes + bytes}) {
    CHECK_THROWS_AS(dtrain::from_bytes<ColorAndKey>(text, "a choice"), dtrain::Error);
  }
}

TEST_CASE("a split gives each color a channel of its own, also a split of a split, beside the first one") {
  const int ranks = 5;
  run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread& thread) {
    const int color = thread.rank() % 2;
    thread.doing("splitting");
    Communicator half = self.communicator.split_blocking(color, -thread.rank(), Deadline::after(10s));
    CHECK(half.size() == (color == 0 ? 3 : 2));
    CHECK(half.rank() == half.size() - 1 - thread.rank() / 2);
    CHECK(sum_over(half, self, thread.rank()) == (color == 0 ? 10101 : 1010));
    Communicator alone = half.split_blocking(half.rank(), 0, Deadline::after(10s));
    CHECK(alone.size() == 1);
    CHECK(sum_over(alone, self, thread.rank()) == sum_over(alone, self, thread.rank()));
    CHECK(sum_over(self.communicator, self, thread.rank()) == 11111);
    Communicator again = self.communicator.split_blocking(7, 0, Deadline::after(10s));
    CHECK(again.rank() == thread.rank());
    CHECK(sum_over(again, self, thread.rank()) == 11111);
  });
}

TEST_CASE("a split of a color below 0 is refused, and a rank that does not come to it is a timeout") {
  run_ranks<SharedMemoryRank>(2, [&](SharedMemoryRank& self, RankThread& thread) {
    CHECK_THROWS_WITH_AS(self.communicator.split_blocking(-1, 0, Deadline::after(1s)),
                         doctest::Contains("colors begin at 0"), dtrain::Error);
    if (thread.rank() == 0) {
      CHECK_THROWS_AS(self.communicator.split_blocking(0, 0, Deadline::after(100ms)), dtrain::Error);
    }
  });
}

TEST_CASE("a failure of a split-off channel is reported under the rank's number in the job") {
  run_ranks<SharedMemoryRank>({2, "group", 200ms}, [&](SharedMemoryRank& self, RankThread& thread) {
    std::optional<Communicator> pair = self.communicator.split_blocking(0, -thread.rank(), Deadline::after(10s));
    CHECK(pair->rank() == 1 - thread.rank());
    if (thread.rank() == 1) {  // rank 0 of the pair
      pair->enqueue(Barrier{}, self.stream.ref());
      CHECK_FALSE((self.wait() && !pair->failure()));
      CHECK(pair->failure()->rank == 1);
      CHECK_CONTAINS(pair->failure()->text, "rank 0 had not arrived");
    } else {
      self.latch->block_until_failed(Deadline::after(10s));
    }
  });
}

}  // namespace
