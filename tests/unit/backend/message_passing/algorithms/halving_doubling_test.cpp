#include "dtrain/backend/message_passing/algorithms/halving_doubling.hpp"
#include "unit/backend/message_passing/algorithms/memory_ranks.hpp"

namespace {

using namespace memory_ranks;

/// The routine keeps references to what it works on.
passing::Routine run_halving_doubling(passing::OperationContext<RoutineEndpoint>& context,
                                      const passing::Buffers& buffers) {
  passing::Routine routine = passing::halving_doubling(context, buffers);
  co_await routine;
}

std::vector<ByteVector> outputs(const Operation& operation, const std::vector<ByteVector>& inputs, bool in_place,
                                Accumulate accumulate = Accumulate::element) {
  return support::run_routines(support::test_channel(fine, inputs.size(), accumulate), operation, inputs,
                               operation.count * size_bytes(operation.dtype), in_place, run_halving_doubling)
      .outputs;
}

constexpr int sizes[] = {2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 33, 48};

TEST_CASE("halving-doubling reduces integers of any length on any number of ranks, in place and not") {
  support::Combinations(sizes, std::array{0U, 1U, 7U, 16U, 17U, 100U, 1000U, 4099U},
                        std::array{ReduceOp::sum, ReduceOp::average, ReduceOp::product}, std::array{false, true})
      .for_each([&](int size, std::size_t count, ReduceOp op, bool in_place) {
        CAPTURE(size);
        CAPTURE(count);
        CAPTURE(dtrain::name(op));
        const std::vector<ByteVector> given = inputs(size, DType::i32, count);
        const ByteVector expected = support::scalar_reduction(DType::i32, op, given);
        for (const ByteVector& output : outputs(all_reduce(count, DType::i32, op), given, in_place))
          CHECK(output == expected);
      });
}

TEST_CASE("halving-doubling reduces every type by every operation") {
  support::Combinations(std::array{Accumulate::element, Accumulate::f32}, std::array{2, 4, 7, 8, 13},
                        support::all_dtypes, support::all_ops, std::array{std::size_t{9}, std::size_t{1003}})
      .for_each([&](Accumulate accumulate, int size, DType dtype, ReduceOp op, std::size_t count) {
        CAPTURE(dtrain::name(accumulate));
        CAPTURE(size);
        CAPTURE(dtrain::name(dtype));
        CAPTURE(dtrain::name(op));
        const bool rounds = op == ReduceOp::average && !std::has_single_bit(static_cast<unsigned>(size));
        if (dtrain::is_float(dtype) && rounds) {
          return;  // the next test
        }
        std::vector<ByteVector> inputs;
        for (int rank = 0; rank < size; ++rank)
          inputs.push_back(support::exact_values(dtype, count, rank));
        const ByteVector expected = support::scalar_reduction(dtype, op, inputs);
        for (const ByteVector& output : outputs(all_reduce(count, dtype, op), inputs, false, accumulate))
          CHECK(output == expected);
      });
}

TEST_CASE("an average by halving-doubling of values whose sum overflows is right") {
  support::Combinations(std::array{Accumulate::element, Accumulate::f32}, std::array{9, 13}, support::all_dtypes)
      .for_each([&](Accumulate accumulate, int size, DType dtype) {
        CAPTURE(dtrain::name(accumulate));
        CAPTURE(dtrain::name(dtype));
        const std::vector<ByteVector> inputs(static_cast<std::size_t>(size), support::large_values(dtype, 503));
        for (const ByteVector& output : outputs(all_reduce(503, dtype, ReduceOp::average), inputs, true, accumulate)) {
          const bool is_half = dtype == DType::f16 || dtype == DType::bf16;
          CHECK(support::is_large_value(dtype, output, is_half && accumulate == Accumulate::f32 ? 0 : 2 * size));
        }
      });
}

/// The order of the documentation: pairs first, then groups of neighbours, then groups of such groups. @param stage the
/// participants of the group of its stages below `stage` that begins at `first`
float sum_of_group(const std::vector<float>& contributions, const passing::HalvingStages& stages, std::size_t stage,
                   int first) {
  if (stage == 0) {
    const auto rank = static_cast<std::size_t>(stages.rank(first));
    const float own = contributions[rank];
    return stages.is_paired(static_cast<int>(rank)) ? own + contributions[rank + 1] : own;
  }
  float sum = sum_of_group(contributions, stages, stage - 1, first);
  for (int k = 1; k < stages.factor(stage - 1); ++k)
    sum += sum_of_group(contributions, stages, stage - 1, first + k * stages.distance(stage - 1));
  return sum;
}

TEST_CASE("halving-doubling sums floats in the documented order, the same bits on every rank, in f32 if asked to") {
  for (const int size : sizes) {
    CAPTURE(size);
    const std::size_t count = 777;
    const passing::HalvingStages stages(size);
    std::vector<ByteVector> inputs;
    std::vector<ByteVector> halves;
    ByteVector expected(count * 4);
    ByteVector expected_halves(count * 2);
    for (int rank = 0; rank < size; ++rank) {
      inputs.emplace_back(count * 4);
      halves.emplace_back(count * 2);
    }
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<float> contributions;
      for (int rank = 0; rank < size; ++rank) {
        // bf16 values, of which f32 sums round as well
        const auto bits =
            static_cast<std::uint16_t>(0x3000 + (i * 7919 + static_cast<std::size_t>(rank) * 104729) % 0x2000);
        const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
        contributions.push_back(value);
        std::memcpy(inputs[static_cast<std::size_t>(rank)].data() + 4 * i, &value, 4);
        std::memcpy(halves[static_cast<std::size_t>(rank)].data() + 2 * i, &bits, 2);
      }
      const float sum = sum_of_group(contributions, stages, stages.count(), 0);
      std::memcpy(expected.data() + 4 * i, &sum, 4);
      const auto sum_bits = std::bit_cast<std::uint32_t>(sum);
      const auto rounded = static_cast<std::uint16_t>((sum_bits + 0x7fff + (sum_bits >> 16U & 1U)) >> 16U);
      std::memcpy(expected_halves.data() + 2 * i, &rounded, 2);
    }
    for (const ByteVector& output : outputs(all_reduce(count, DType::f32, ReduceOp::sum), inputs, false))
      CHECK(output == expected);
    for (const bool in_place : {false, true}) {
      for (const ByteVector& output :
           outputs(all_reduce(count, DType::bf16, ReduceOp::sum), halves, in_place, Accumulate::f32)) {
        CHECK(output == expected_halves);
      }
    }
  }
}

TEST_CASE("ranks in halving-doubling detect that others call something else") {
  for (const int size : {2, 3, 5, 8, 13}) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{3000}}) {
      for (int other = 0; other < size; ++other) {
        CAPTURE(size);
        CAPTURE(count);
        CAPTURE(other);
        support::RoutineNetwork network(size);
        const passing::ChannelInfo channel = support::test_channel(fine, static_cast<std::size_t>(size));
        struct Rank {
          Rank(support::RoutineNetwork& network, int rank, const passing::ChannelInfo& channel, const Operation& what)
              : endpoint(network, rank), context{endpoint, scratch, channel, what}, memory(what.count * 4) {}
          passing::Scratch scratch;
          RoutineEndpoint endpoint;
          passing::OperationContext<RoutineEndpoint> context;
          ByteVector memory;
          passing::Buffers buffers{memory.data(), memory.data()};
          passing::Routine routine{};
        };
        std::vector<std::unique_ptr<Rank>> ranks;
        for (int rank = 0; rank < size; ++rank) {
          Operation what = all_reduce(count, DType::f32, ReduceOp::sum);
          what.op = rank == other ? ReduceOp::max : what.op;
          ranks.push_back(std::make_unique<Rank>(network, rank, channel, what));
          ranks.back()->routine = run_halving_doubling(ranks.back()->context, ranks.back()->buffers);
        }
        for (const auto& rank : ranks)
          rank->routine.resume();
        network.run();
        bool detected = false;
        for (const auto& rank : ranks) {
          try {
            if (rank->routine.done()) {
              rank->routine.check();
            }
          } catch (const dtrain::Error& error) {
            detected = detected || std::string(error.what()).find("all_reduce (max)") != std::string::npos;
          }
        }
        CHECK(detected);
      }
    }
  }
}

}  // namespace
