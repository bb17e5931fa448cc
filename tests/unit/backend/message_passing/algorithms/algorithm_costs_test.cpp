#include "support/algorithm_traffic.hpp"
#include "unit/backend/message_passing/algorithms/memory_ranks.hpp"

/// Each algorithm runs for real, on up to 64 ranks: its results are right, and each rank sends exactly what the formula
/// says.
namespace {

using memory_ranks::operation;
using passing::CollectiveShape;
using passing::Tuning;
using support::RankTraffic;
using support::RoutineRun;

constexpr int sizes[] = {2, 3, 4, 5, 7, 12, 16, 32, 33, 48, 64};
constexpr std::size_t counts[] = {1, 16, 100, 64 * 33, 5003};

struct Reduction {
  DType dtype;
  Accumulate accumulate;
};
constexpr Reduction reductions[] = {{DType::f32, Accumulate::element}, {DType::bf16, Accumulate::f32}};

/// Chunks of 512 bytes: a few thousand elements take many.
Tuning fine(std::size_t small_bytes) {
  Tuning tuning;
  tuning.small_bytes = small_bytes;
  tuning.chunk_bytes = 512;
  tuning.chunks_in_flight = 3;
  tuning.direct_exchange_ranks = 0;
  return tuning;
}

/// broadcast.hpp, the tree: after a header to the next rank, ceil(log2(n)) (alpha + S beta).
struct BroadcastTreeCost {
  CollectiveShape shape;
  int root;

  constexpr RankTraffic sent_by(int rank) const noexcept {
    const int relative = (rank - root + shape.ranks) % shape.ranks;
    int reach = 1;
    while (reach < shape.ranks && (relative & reach) == 0)
      reach *= 2;
    RankTraffic sent{1, 1, 0};
    for (int distance = reach / 2; distance > 0; distance /= 2) {
      const std::size_t children = relative + distance < shape.ranks ? 1 : 0;
      sent = {sent.messages + children, sent.headers + children, sent.payload_bytes + children * shape.bytes()};
    }
    return sent;
  }
};

/// broadcast.hpp, the chain of m chunks: (m + n - 2) (alpha + S / m beta).
struct BroadcastChainCost {
  CollectiveShape shape;
  Tuning tuning;
  int root;

  RankTraffic sent_by(int rank) const noexcept {
    const bool is_last = (rank + 1) % shape.ranks == root;
    const passing::Blocks blocks(shape.bytes(), DType::u8, 1, tuning);
    return {1 + (is_last ? 0 : blocks.rounds() * blocks.chunks_in_flight()), 1, is_last ? 0 : shape.bytes()};
  }
};

/// operation_header.hpp, the barrier: ceil(log2(n)) alpha.
struct BarrierCost {
  int ranks;

  constexpr RankTraffic sent_by(int /*rank*/) const noexcept {
    const auto rounds = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(ranks - 1)));
    return {rounds, rounds, 0};
  }
};

std::vector<ByteVector> inputs(int size, std::size_t count, DType dtype) {
  std::vector<ByteVector> made;
  for (int rank = 0; rank < size; ++rank)
    made.push_back(support::exact_values(dtype, count, rank));
  return made;
}

passing::Routine selected(passing::OperationContext<RoutineEndpoint>& context, const passing::Buffers& buffers) {
  passing::Routine routine = passing::collective(context, buffers);
  co_await routine;
}

passing::Routine halving(passing::OperationContext<RoutineEndpoint>& context, const passing::Buffers& buffers) {
  passing::Routine routine = passing::halving_doubling(context, buffers);
  co_await routine;
}

passing::Routine round_ring(passing::OperationContext<RoutineEndpoint>& context, const passing::Buffers& buffers) {
  passing::Routine routine = passing::ring_all_reduce(context, buffers);
  co_await routine;
}

passing::Routine direct(passing::OperationContext<RoutineEndpoint>& context, const passing::Buffers& buffers) {
  const Operation& what = context.operation;
  const passing::BlockCollective work{buffers.input, buffers.output,
                                      passing::Blocks(what.count, what.dtype, context.size(), context.channel.tuning),
                                      true, true};
  passing::Routine routine = passing::direct_reduce_scatter(context, work);
  co_await routine;
}

CollectiveShape shape_of(int size, std::size_t count, const Reduction& reduction) {
  return {size, count, reduction.dtype,
          dtrain::kernels::partial_type(reduction.dtype, ReduceOp::sum, reduction.accumulate)};
}

template <class Cost>
void check_sent(const RoutineRun& run, const Cost& cost) {
  for (std::size_t rank = 0; rank < run.sent.size(); ++rank) {
    CAPTURE(rank);
    const RankTraffic traffic = cost.sent_by(static_cast<int>(rank));
    CHECK(run.sent[rank].messages == traffic.messages);
    CHECK(run.sent[rank].bytes == traffic.bytes());
  }
}

/// @param cost_of the formula for a shape
template <class Make, class CostOf>
void check_all_reduce(int most_ranks, const Tuning& tuning, std::size_t most_bytes, Make make, CostOf cost_of) {
  support::Combinations(sizes, counts, reductions)
      .for_each([&](int size, std::size_t count, const Reduction& reduction) {
        if (size > most_ranks || count * 4 > most_bytes) return;
        CAPTURE(size);
        CAPTURE(count);
        CAPTURE(dtrain::name(reduction.dtype));
        const std::vector<ByteVector> given = inputs(size, count, reduction.dtype);
        const RoutineRun run = support::run_routines(support::test_channel(tuning, given.size(), reduction.accumulate),
                                                     operation(OperationKind::all_reduce, count, reduction.dtype),
                                                     given, count * size_bytes(reduction.dtype), false, make);
        const ByteVector expected = support::scalar_reduction(reduction.dtype, ReduceOp::sum, given);
        for (const ByteVector& output : run.outputs)
          CHECK(output == expected);
        check_sent(run, cost_of(shape_of(size, count, reduction)));
      });
}

constexpr std::size_t any_length = static_cast<std::size_t>(-1);

TEST_CASE("an all_reduce by direct exchange sends what its formula says") {
  Tuning tuning = fine(32768);
  tuning.direct_exchange_ranks = passing::max_direct_exchange_ranks;
  check_all_reduce(passing::max_direct_exchange_ranks, tuning, tuning.small_bytes, selected,
                   [](const CollectiveShape& shape) { return support::DirectExchangeTraffic{shape}; });
}

TEST_CASE("an all_reduce by recursive doubling sends what its formula says") {
  const Tuning tuning = fine(32768);
  check_all_reduce(64, tuning, tuning.small_bytes, selected,
                   [](const CollectiveShape& shape) { return support::RecursiveDoublingTraffic{shape}; });
}

TEST_CASE("an all_reduce by halving-doubling sends what its formula says") {
  for (const std::size_t small_bytes : {std::size_t{0}, std::size_t{256}}) {
    const Tuning tuning = fine(small_bytes);
    check_all_reduce(64, tuning, any_length, halving, [&](const CollectiveShape& shape) {
      return support::HalvingDoublingTraffic{shape, tuning};
    });
  }
}

TEST_CASE("an all_reduce by ring sends what its formula says") {
  const Tuning tuning = fine(0);
  check_all_reduce(64, tuning, any_length, round_ring, [&](const CollectiveShape& shape) {
    return support::RingTraffic{shape, tuning, true, true};
  });
}

TEST_CASE("an all_reduce by direct reduce-scatter sends what its formula says") {
  const Tuning tuning = fine(0);
  check_all_reduce(passing::max_direct_exchange_ranks, tuning, any_length, direct, [&](const CollectiveShape& shape) {
    return support::DirectReduceScatterTraffic{shape, tuning, true};
  });
}

/// Of the algorithm of algorithm_of().
struct SelectedTraffic {
  CollectiveShape shape;
  Tuning tuning;

  RankTraffic sent_by(int rank) const noexcept {
    switch (algorithm_of(shape, tuning)) {
      case passing::AllReduceAlgorithm::direct_exchange: return support::DirectExchangeTraffic{shape}.sent_by(rank);
      case passing::AllReduceAlgorithm::recursive_doubling:
        return support::RecursiveDoublingTraffic{shape}.sent_by(rank);
      case passing::AllReduceAlgorithm::halving_doubling:
        return support::HalvingDoublingTraffic{shape, tuning}.sent_by(rank);
      case passing::AllReduceAlgorithm::direct_reduce_scatter:
        return support::DirectReduceScatterTraffic{shape, tuning, true}.sent_by(rank);
      case passing::AllReduceAlgorithm::ring: return support::RingTraffic{shape, tuning, true, true}.sent_by(rank);
    }
    return {};
  }
};

TEST_CASE("an all_reduce of any length runs the algorithm of its length and number of ranks") {
  for (const bool one_host : {false, true}) {
    CAPTURE(one_host);
    Tuning tuning = fine(256);
    tuning.direct_exchange_ranks = 8;
    tuning.direct_reduce_scatter = one_host;
    check_all_reduce(64, tuning, any_length, selected, [&](const CollectiveShape& shape) {
      return SelectedTraffic{shape, tuning};
    });
  }
}

TEST_CASE("an all_reduce of long buffers on 11 ranks sends what the formula of a ring says") {
  const std::size_t count = 11 * 32768 + 1;
  const Tuning tuning;
  const std::vector<ByteVector> given = inputs(11, count, DType::f32);
  const RoutineRun run =
      support::run_routines(support::test_channel(tuning, 11), operation(OperationKind::all_reduce, count, DType::f32),
                            given, count * 4, false, selected);
  CHECK(run.outputs[10] == support::scalar_reduction(DType::f32, ReduceOp::sum, given));
  check_sent(run, support::RingTraffic{shape_of(11, count, reductions[0]), tuning, true, true});
}

TEST_CASE("reduce_scatter and all_gather send what their formulas say") {
  for (const bool direct : {false, true}) {
    Tuning tuning = fine(0);
    tuning.direct_exchange_ranks = direct ? passing::max_direct_exchange_ranks : 0;
    tuning.direct_reduce_scatter = direct;
    for (const int size : sizes) {
      const auto ranks = static_cast<std::size_t>(size);
      for (const std::size_t count : {std::size_t{1}, std::size_t{33}, std::size_t{500}}) {
        CAPTURE(direct);
        CAPTURE(size);
        CAPTURE(count);
        const CollectiveShape shape{size, count * ranks, DType::f32, DType::f32};
        const std::vector<ByteVector> given = inputs(size, count * ranks, DType::f32);
        const ByteVector reduced = support::scalar_reduction(DType::f32, ReduceOp::sum, given);
        const passing::ChannelInfo channel = support::test_channel(tuning, ranks);
        const RoutineRun scattered = support::run_routines(
            channel, operation(OperationKind::reduce_scatter, count, DType::f32), given, count * 4, false, selected);
        const RoutineRun gathered =
            support::run_routines(channel, operation(OperationKind::all_gather, count, DType::f32), scattered.outputs,
                                  count * ranks * 4, false, selected);
        for (const ByteVector& output : gathered.outputs)
          CHECK(output == reduced);
        if (direct && size <= passing::max_direct_exchange_ranks) {
          check_sent(scattered, support::DirectReduceScatterTraffic{shape, tuning, false});
        } else {
          check_sent(scattered, support::RingTraffic{shape, tuning, true, false});
        }
        check_sent(gathered, support::RingTraffic{shape, tuning, false, true});
      }
    }
  }
}

TEST_CASE("small reduce_scatter and all_gather by direct exchange send what the formula says") {
  Tuning tuning = fine(4096);
  tuning.direct_exchange_ranks = passing::max_direct_exchange_ranks;
  for (const int size : {2, 3, 5, 7, 12, 16}) {
    const auto ranks = static_cast<std::size_t>(size);
    const std::size_t count = 33;
    CAPTURE(size);
    const std::vector<ByteVector> given = inputs(size, count * ranks, DType::f32);
    const passing::ChannelInfo channel = support::test_channel(tuning, ranks);
    const RoutineRun scattered = support::run_routines(
        channel, operation(OperationKind::reduce_scatter, count, DType::f32), given, count * 4, false, selected);
    const RoutineRun gathered = support::run_routines(channel, operation(OperationKind::all_gather, count, DType::f32),
                                                      scattered.outputs, count * ranks * 4, false, selected);
    const support::DirectExchangeTraffic cost{{size, count, DType::f32, DType::f32}};
    check_sent(scattered, cost);
    check_sent(gathered, cost);
    CHECK(gathered.outputs[0] == support::scalar_reduction(DType::f32, ReduceOp::sum, given));
  }
}

TEST_CASE("broadcasts and barriers send what their formulas say") {
  for (const int size : sizes) {
    support::Combinations(std::array{0, 1, size - 1}, std::array{true, false}, counts)
        .for_each([&](int root, bool small, std::size_t count) {
          CAPTURE(size);
          CAPTURE(root);
          CAPTURE(small);
          CAPTURE(count);
          const Tuning tuning = fine(small ? 32768 : 0);
          const CollectiveShape shape{size, count, DType::f32, DType::f32};
          Operation broadcast = operation(OperationKind::broadcast, count, DType::f32);
          broadcast.root = root;
          const std::vector<ByteVector> given = inputs(size, count, DType::f32);
          const RoutineRun run = support::run_routines(support::test_channel(tuning, given.size()), broadcast, given,
                                                       count * 4, true, selected);
          for (const ByteVector& output : run.outputs)
            CHECK(output == given[static_cast<std::size_t>(root)]);
          if (small) {
            check_sent(run, BroadcastTreeCost{shape, root});
          } else {
            check_sent(run, BroadcastChainCost{shape, tuning, root});
          }
        });
    const std::vector<ByteVector> nothing(static_cast<std::size_t>(size));
    check_sent(support::run_routines(support::test_channel(fine(0), nothing.size()),
                                     operation(OperationKind::barrier, 0, DType::u8), nothing, 0, true, selected),
               BarrierCost{size});
  }
}

}  // namespace
