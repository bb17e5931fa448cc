#include "unit/cuda/prelude.hpp"

#if !DTRAIN_WITH_GLOO

TEST_CASE("device memory over Gloo") {
  dtrain_test::skip("no Gloo was found when this program was built (libgloo-dev)");
}

#else

#include "dtrain/backend/gloo.hpp"

TEST_CASE("device memory goes over Gloo: reductions, broadcasts, blocks and messages of several chunks") {
  for (const int ranks : {1, 2, 3}) {
    run_ranks<StagedRank<dtrain::backend::Gloo>>(
        {ranks, "staged", 20s}, [&](StagedRank<dtrain::backend::Gloo>& rank, RankThread& self) {
          const std::size_t count = 300'001;
          const auto arena = rank.communicator.allocate_blocking(4 * count, Deadline::after(60s));
          const auto size = static_cast<std::size_t>(ranks);
          const std::vector<float> own(count, static_cast<float>(self.rank() + 1));
          const std::vector<float> sum(count, static_cast<float>(ranks * (ranks + 1) / 2));

          support::write(arena.data(), own);
          const BufferView bound = rank.view(arena.data(), count);
          const BufferView foreign = rank.put(own);
          rank.communicator.enqueue(AllReduce{bound, bound, ReduceOp::sum}, rank.ref());
          rank.communicator.enqueue(AllReduce{foreign, foreign, ReduceOp::sum}, rank.ref());
          REQUIRE(rank.wait());
          CHECK(rank.get<float>(bound) == sum);
          CHECK(rank.get<float>(foreign) == sum);

          const BufferView sent = rank.put(own);
          const BufferView blocks = rank.space(size * count);
          rank.communicator.enqueue(AllGather{sent, blocks}, rank.ref());
          rank.communicator.enqueue(ReduceScatter{blocks, bound, ReduceOp::max}, rank.ref());
          const BufferView received = rank.space(count);
          const int next = (self.rank() + 1) % ranks;
          const int previous = (self.rank() + ranks - 1) % ranks;
          rank.communicator.enqueue(SendRecv{sent, next, received, previous}, rank.ref());
          rank.communicator.enqueue(Broadcast{foreign, ranks - 1}, rank.ref());
          rank.communicator.enqueue(Barrier{}, rank.ref());
          REQUIRE(rank.wait());
          CHECK(rank.get<float>(bound) == own);  // block r is rank r's, on every rank
          CHECK(rank.get<float>(received) == std::vector<float>(count, static_cast<float>(previous + 1)));
          CHECK(rank.get<float>(foreign) == sum);
        });
  }
}

#endif
