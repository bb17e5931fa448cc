// The backend that tests of several virtual nodes use.

#include "support/store_backend.hpp"
#include "unit/backend/prelude.hpp"

using support::StoreBackend;

namespace {

using StoreRank = support::HostRank<StoreBackend>;

template <class T>
void check_reductions(std::size_t count) {
  for (const int ranks : {1, 2, 3}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      const std::vector<std::vector<T>> inputs = support::awkward_inputs<T>(ranks, count, 3);
      const std::vector<T> expected = support::reference_reduction(op, inputs);
      std::atomic<int> right{0};
      run_ranks<StoreRank>(ranks, [&](StoreRank& rank, RankThread& self) {
        for (int round = 0; round < 3; ++round) {
          std::vector<T> values = inputs[static_cast<std::size_t>(self.rank())];
          const dtrain::BufferView view = dtrain::buffer_view(std::span<T>(values));
          rank.communicator.enqueue(AllReduce{view, view, op}, rank.stream.ref());
          const bool well = rank.wait();
          right += well && support::same_bits(values.data(), expected) ? 1 : 0;
        }
      });
      CHECK(right == 3 * ranks);
    }
  }
}

}  // namespace

TEST_CASE("the store backend reduces in the order of the ranks, over several pieces too") {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{100'000}})
    check_reductions<float>(count);
  check_reductions<double>(70'000);
}

TEST_CASE("the store backend broadcasts from any root, and its barrier lets nobody pass alone") {
  constexpr int ranks = 3;
  std::atomic<int> arrived{0};
  std::atomic<int> right{0};
  run_ranks<StoreRank>(ranks, [&](StoreRank& rank, RankThread& self) {
    for (int root = 0; root < ranks; ++root) {
      std::vector<std::int32_t> values(5, self.rank());
      rank.communicator.enqueue(Broadcast{dtrain::buffer_view(std::span<std::int32_t>(values)), root},
                                rank.stream.ref());
      right += rank.wait() && values == std::vector<std::int32_t>(5, root) ? 1 : 0;
    }
    if (self.rank() == 1) std::this_thread::sleep_for(100ms);
    ++arrived;
    rank.communicator.enqueue(Barrier{}, rank.stream.ref());
    right += rank.wait() && arrived == ranks ? 1 : 0;
  });
  CHECK(right == ranks * (ranks + 1));
}

TEST_CASE("an operation of the store backend ends by its deadline, by an abort and where ranks disagree") {
  const auto late = std::make_shared<FakeJob>(2);
  run_thread_ranks(1, [&](RankThread&) {
    StoreRank rank(late, 0, 2, "group", 200ms);
    rank.communicator.enqueue(Barrier{}, rank.stream.ref());
    CHECK(!rank.wait());
    REQUIRE(late->latch(1)->failed());
    CHECK(late->latch(1)->cause()->kind == dtrain::CauseKind::timeout);
  });
  const auto aborted = std::make_shared<FakeJob>(2);
  run_thread_ranks(1, [&](RankThread&) {
    StoreRank rank(aborted, 0, 2);
    std::thread other([&] {
      std::this_thread::sleep_for(50ms);
      rank.communicator.abort({dtrain::CauseKind::exception, 1, "", "no more"});
    });
    rank.communicator.enqueue(Barrier{}, rank.stream.ref());
    CHECK(!rank.wait());
    CHECK(rank.communicator.failure()->text == "no more");
    other.join();
  });
  const auto split = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& self) {
    StoreRank rank(split, self.rank(), 2);
    std::vector<float> values(static_cast<std::size_t>(3 + self.rank()));
    const dtrain::BufferView view = dtrain::buffer_view(std::span<float>(values));
    rank.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, rank.stream.ref());
    CHECK(!rank.wait());
  });
  CHECK(split->latch(0)->cause()->kind == dtrain::CauseKind::disagreement);
}
