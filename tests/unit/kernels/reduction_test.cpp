#include "unit/kernels/prelude.hpp"

using support::Ranks;

namespace {

using MakeBytes = std::vector<std::byte> (*)(DType, std::size_t count, std::uint64_t seed);

Ranks ranks_of(MakeBytes bytes, DType dtype, std::size_t ranks, std::size_t count, std::uint64_t seed) {
  Ranks values;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    values.push_back(bytes(dtype, count, seed * 1000 + rank));
  return values;
}

Ranks awkward_ranks(DType dtype, std::size_t ranks, std::size_t count, std::uint64_t seed) {
  return ranks_of(&support::awkward_bytes, dtype, ranks, count, seed);
}

void check_all(std::size_t ranks, std::size_t count, std::size_t offset, std::uint64_t seed,
               MakeBytes bytes = &support::awkward_bytes) {
  CAPTURE(ranks);
  CAPTURE(count);
  for (const DType dtype : support::all_dtypes) {
    const Ranks inputs = ranks_of(bytes, dtype, ranks, count, seed);
    for (const ReduceOp op : support::all_ops) {
      const std::vector<std::byte> expected = support::scalar_reduction(dtype, op, inputs);
      for (const Isa isa : {Isa::baseline, Isa::avx2}) {
        if (dtrain::kernels::runs_on_this_machine(isa)) {
          INFO(dtrain::name(dtype), " ", dtrain::name(op), " ", dtrain::kernels::name(isa));
          CHECK((support::reduce_bytes(Reduction::of(dtype, op, isa), inputs, count, offset) == expected));
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("every element type, operation and instruction set gives the documented bits, for 1 to 256 ranks") {
  for (const unsigned ranks : {1U, 2U, 3U, 4U, 7U, 64U, 256U}) {
    check_all(ranks, 523, 0, ranks);
    check_all(ranks, 523, 0, ranks, &support::bytes_near_one);
  }
}

TEST_CASE("every length from 0 to 130 gives the same bits, and nothing beside the targets changes") {
  for (std::size_t count = 0; count <= 130; ++count)
    check_all(2, count, 0, count);
}

TEST_CASE("operands at any address give the same bits") {
  for (std::size_t offset = 0; offset < 33; ++offset) {
    CAPTURE(offset);
    check_all(3, 77, offset, offset);
  }
}

TEST_CASE("many random values give the documented bits") {
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    check_all(2 + seed, 10'000, 0, 7000 + seed);
}

TEST_CASE("an average over a given number of ranks divides by it, whatever the number of sources") {
  for (const DType dtype : support::all_dtypes) {
    for (const std::size_t sources : {1U, 2U, 3U}) {
      const Ranks inputs = awkward_ranks(dtype, sources, 523, 90 + sources);
      for (const std::size_t divisor : {1U, 3U, 8U, 1000U}) {
        const std::vector<std::byte> expected = support::scalar_reduction(dtype, ReduceOp::average, inputs, divisor);
        support::for_each_isa([&](Isa isa) {
          INFO(dtrain::name(dtype), " ", sources, " sources over ", divisor);
          const Reduction reduction = Reduction::of(dtype, ReduceOp::average, isa).over(divisor);
          CHECK((support::reduce_bytes(reduction, inputs, 523) == expected));
        });
      }
    }
  }
}

TEST_CASE("a given number of ranks changes nothing where the operation does not divide") {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    for (const std::size_t sources : {1U, 2U}) {
      const Ranks inputs = awkward_ranks(DType::f32, sources, 100, sources);
      CHECK((support::reduce_bytes(Reduction::of(DType::f32, op).over(7), inputs, 100) ==
             support::scalar_reduction(DType::f32, op, inputs)));
    }
  }
}
