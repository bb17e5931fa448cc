#include "dtrain/backend/message_passing/algorithms/algorithm_table.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using dtrain::backend::AlgorithmChoice;
using dtrain::backend::LinkCost;
using passing::AlgorithmTable;
using passing::AllReduceAlgorithm;
using passing::CollectiveShape;
using passing::Tuning;

CollectiveShape floats(int ranks, std::size_t bytes) {
  return {ranks, bytes / 4, DType::f32, DType::f32};
}

constexpr LinkCost data_center{20e-6, 1e-10};

TEST_CASE("a table has the cheapest algorithm for each power of two") {
  Tuning tuning;
  tuning.chunks_in_flight = 8;
  constexpr AllReduceAlgorithm all[] = {AllReduceAlgorithm::recursive_doubling, AllReduceAlgorithm::halving_doubling,
                                        AllReduceAlgorithm::ring};
  for (const int ranks : {3, 12, 64, 1000}) {
    const AlgorithmTable table = AlgorithmTable::cheapest(ranks, tuning, data_center);
    CHECK(table.is_valid());
    for (std::size_t bytes = 4; bytes <= std::size_t{1} << 34U; bytes *= 2) {
      CAPTURE(ranks);
      CAPTURE(bytes);
      const CollectiveShape shape = floats(ranks, bytes);
      const AllReduceAlgorithm chosen = table.at(shape, tuning);
      CHECK(can_run(chosen, shape, tuning));
      for (const AllReduceAlgorithm other : all) {
        if (can_run(other, shape, tuning)) {
          CHECK(modelled_seconds(chosen, shape, tuning, data_center) <=
                modelled_seconds(other, shape, tuning, data_center));
        }
      }
    }
  }
}

TEST_CASE("many ranks use trees for small buffers, and few ranks rings for what extra ranks would have to send twice") {
  const Tuning tuning;
  const AlgorithmTable many = AlgorithmTable::cheapest(1024, tuning, data_center);
  CHECK(many.at(floats(1024, 4), tuning) == AllReduceAlgorithm::recursive_doubling);
  CHECK(many.at(floats(1024, 1 << 20), tuning) == AllReduceAlgorithm::halving_doubling);
  const AlgorithmTable odd = AlgorithmTable::cheapest(11, tuning, data_center);
  CHECK(odd.at(floats(11, 1 << 26), tuning) == AllReduceAlgorithm::ring);
  Tuning on_host = tuning;
  on_host.direct_reduce_scatter = true;
  const AlgorithmTable few = AlgorithmTable::cheapest(2, on_host, data_center);
  CHECK(few.at(floats(2, 4), on_host) == AllReduceAlgorithm::direct_exchange);
  CHECK(few.at(floats(2, 1 << 24), on_host) == AllReduceAlgorithm::direct_reduce_scatter);
  CHECK(few.description() ==
        "alpha 2e-05 s, beta 1e-10 s/byte: direct exchange to 8192 bytes, then direct reduce-scatter");
}

TEST_CASE("a buffer whose partial results are wider than the table knows is reduced by an algorithm that can") {
  const Tuning tuning;
  const AlgorithmTable table = AlgorithmTable::cheapest(64, tuning, data_center);
  const CollectiveShape bytes{64, 4096, DType::u8, DType::i64};
  CHECK(table.at(bytes, tuning) == AllReduceAlgorithm::halving_doubling);
}

passing::Routine twice(passing::OperationContext<RoutineEndpoint>& context, const passing::Buffers& buffers) {
  passing::Routine first = passing::collective(context, buffers);
  co_await first;
  context.operation.sequence = 2;
  context.operation.op = ReduceOp::max;
  const passing::Buffers again{buffers.output, buffers.output};
  passing::Routine second = passing::collective(context, again);
  co_await second;
}

TEST_CASE("the first all_reduce settles a channel's algorithms by rank 0's cost, and every rank reduces by its table") {
  // Rank 0 alone has the cost that matters: another rank's would choose other algorithms.
  support::Combinations(std::array{AlgorithmChoice::given(data_center), AlgorithmChoice::measured()},
                        std::array{std::size_t{64}, std::size_t{8192}}, std::array{2, 3, 5, 8, 13, 33},
                        std::array{std::size_t{1}, std::size_t{40}, std::size_t{5000}, std::size_t{100000}})
      .for_each([&](const AlgorithmChoice& choice, std::size_t small_bytes, int size, std::size_t count) {
        CAPTURE(size);
        CAPTURE(count);
        CAPTURE(small_bytes);
        Tuning tuning;
        tuning.small_bytes = small_bytes;
        const auto ranks = static_cast<std::size_t>(size);
        std::vector<passing::ChannelAlgorithms> states(ranks, {choice});
        for (std::size_t rank = 1; rank < ranks; ++rank)
          states[rank].choice.link = {1e-9, 1};
        std::vector<ByteVector> inputs;
        for (int rank = 0; rank < size; ++rank)
          inputs.push_back(support::exact_values(DType::f32, count, rank));
        Operation operation;
        operation.sequence = 1;
        operation.kind = OperationKind::all_reduce;
        operation.count = count;
        const support::RoutineRun run = support::run_routines(
            support::test_channel(tuning, ranks), operation, inputs, count * 4, false,
            [&](passing::OperationContext<RoutineEndpoint>& context, const passing::Buffers& buffers) {
              context.algorithms = &states[static_cast<std::size_t>(context.rank())];
              return twice(context, buffers);
            });
        const ByteVector expected = support::scalar_reduction(DType::f32, ReduceOp::sum, inputs);
        for (const ByteVector& output : run.outputs)
          CHECK(output == expected);
        for (const passing::ChannelAlgorithms& state : states) {
          CHECK(state.is_settled);
          CHECK(state.table.description() == states[0].table.description());
          for (std::size_t bytes = 4; bytes < std::size_t{1} << 30U; bytes *= 2)
            CHECK(state.table.at(floats(size, bytes), tuning) == states[0].table.at(floats(size, bytes), tuning));
        }
        if (choice.basis == AlgorithmChoice::Basis::given) {
          CHECK(states.back().table.description() == AlgorithmTable::cheapest(size, tuning, data_center).description());
        }
      });
}

TEST_CASE("a measured choice is not reproducible, a given one is") {
  CHECK(AlgorithmChoice::measured().reproducible().basis == AlgorithmChoice::Basis::fixed);
  CHECK(AlgorithmChoice::given(data_center).reproducible().basis == AlgorithmChoice::Basis::given);
  CHECK(to_string(AlgorithmChoice{}) == "fixed");
  CHECK(to_string(AlgorithmChoice::measured()) == "measured");
  CHECK(to_string(AlgorithmChoice::given(data_center)) == "alpha 2e-05 s, beta 1e-10 s/byte");
}

}  // namespace
