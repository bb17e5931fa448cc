#include "dtrain/kernels/partial_reduction.hpp"

#include "dtrain/kernels/conversion.hpp"
#include "support/large_values.hpp"
#include "support/scalar_chain.hpp"
#include "unit/kernels/prelude.hpp"

namespace {

using dtrain::Accumulate;
using Bytes = std::vector<std::byte>;

constexpr Accumulate both[] = {Accumulate::element, Accumulate::f32};

std::vector<Bytes> awkward_ranks(DType dtype, std::size_t ranks, std::size_t count) {
  std::vector<Bytes> made;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    made.push_back(support::awkward_bytes(dtype, count, 100 * ranks + rank));
  return made;
}

/// One rank after the other takes its contribution in, where the partial results lie.
Bytes chain(const PartialReduction& reduction, DType dtype, const std::vector<Bytes>& ranks, std::size_t count) {
  Bytes memory(count * dtrain::size_bytes(reduction.type()));
  Bytes result(count * dtrain::size_bytes(dtype));
  std::byte* const first = reduction.contributions_in(memory.data(), count);
  if (count != 0) {
    std::memcpy(first, ranks[0].data(), ranks[0].size());
  }
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const bool last = rank + 1 == ranks.size();
    const std::array<PartialReduction::Operand, 2> sources{
        {{rank == 1 ? first : memory.data(), rank > 1}, {ranks[rank].data(), false}}};
    reduction(sources, last ? result.data() : memory.data(), count, last);
  }
  return result;
}

}  // namespace

TEST_CASE("a chain of partial results gives the documented bits, for every type, operation and length") {
  support::Combinations(both, std::array{std::size_t{2}, std::size_t{3}, std::size_t{9}}, support::all_dtypes,
                        support::all_ops,
                        std::array{std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{2000}})
      .for_each([&](Accumulate accumulate, std::size_t ranks, DType dtype, ReduceOp op, std::size_t count) {
        INFO(dtrain::name(op), " of ", count, " ", dtrain::name(dtype), " on ", ranks, ", accumulated as ",
             dtrain::name(accumulate));
        const std::vector<Bytes> given = awkward_ranks(dtype, ranks, count);
        const PartialReduction reduction(dtype, op, static_cast<int>(ranks), accumulate);
        CHECK((chain(reduction, dtype, given, count) == support::scalar_chain(dtype, op, given, accumulate)));
      });
}

TEST_CASE("what is begun, summed up and ended elsewhere is the reduction, too") {
  support::Combinations(both, support::all_dtypes, std::array{ReduceOp::sum, ReduceOp::average})
      .for_each([&](Accumulate accumulate, DType dtype, ReduceOp op) {
        constexpr std::size_t count = 700;
        INFO(dtrain::name(op), " of ", dtrain::name(dtype), ", accumulated as ", dtrain::name(accumulate));
        const PartialReduction reduction(dtype, op, 4, accumulate);
        std::vector<Bytes> given;
        std::vector<Bytes> begun;
        std::vector<const std::byte*> sources;
        for (int rank = 0; rank < 4; ++rank) {
          given.push_back(support::repeated<std::uint8_t>(static_cast<std::uint8_t>(16 * rank + 4),
                                                          count * dtrain::size_bytes(dtype)));
          begun.emplace_back(count * dtrain::size_bytes(reduction.type()));
          reduction.begin(given.back().data(), begun.back().data(), count);
          sources.push_back(begun.back().data());
        }
        std::byte* const sum = begun[0].data();
        dtrain::kernels::Reduction::of(reduction.type(), ReduceOp::sum)(sources, std::span(&sum, 1), count);
        Bytes result(given[0].size());
        reduction.end(sum, result.data(), count);
        CHECK((result == support::scalar_reduction(dtype, op, given)));
      });
}

TEST_CASE("contributions of more ranks than one pass takes are reduced in rank order and rounded once") {
  for (const auto bytes : {&support::awkward_bytes, &support::bytes_near_one}) {
    for (const DType dtype : support::all_dtypes) {
      for (const ReduceOp op : support::all_ops) {
        constexpr std::size_t ranks = 300;
        INFO(dtrain::name(op), " of ", dtrain::name(dtype));
        std::vector<Bytes> given;
        std::vector<const std::byte*> sources;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          given.push_back(bytes(dtype, 40, 100 * ranks + rank));
          sources.push_back(given.back().data());
        }
        Bytes result(given[0].size());
        PartialReduction(dtype, op, ranks, Accumulate::f32).all(sources, result.data(), 40);
        CHECK((result == support::scalar_chain(dtype, op, given, Accumulate::f32)));
      }
    }
  }
}

TEST_CASE("a weighted sum multiplies each source first and has the same bits from every instruction set") {
  const std::array<double, 3> weights{1.0, 1.0 / 3, 0.7};
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const std::vector<Bytes> given = awkward_ranks(dtype, 3, 333);
    std::vector<Bytes> results;
    support::for_each_isa([&](dtrain::kernels::Isa isa) {
      std::vector<const std::byte*> sources{given[0].data(), given[1].data(), given[2].data()};
      Bytes& result = results.emplace_back(given[0].size());
      std::byte* const target = result.data();
      dtrain::kernels::Reduction::weighted_sum(dtype, isa)(sources, std::span(&target, 1), 333, weights.data());
    });
    for (const Bytes& result : results)
      CHECK((result == results[0]));
  }
}

TEST_CASE("16-bit floats are widened exactly, and f32 is narrowed to the nearest of them") {
  const auto check = [](auto format, DType dtype) {
    using Format = decltype(format);
    std::vector<std::uint16_t> halves(65536);
    for (std::size_t i = 0; i < halves.size(); ++i)
      halves[i] = static_cast<std::uint16_t>(i);
    std::vector<float> floats(halves.size() - 1);  // no multiple of a vector
    dtrain::kernels::convert(dtype, reinterpret_cast<const std::byte*>(halves.data()), DType::f32,
                             reinterpret_cast<std::byte*>(floats.data()), floats.size());
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const float exact = Format::value(halves[i]);
      CHECK_FALSE((std::bit_cast<std::uint32_t>(floats[i]) != std::bit_cast<std::uint32_t>(exact) && exact == exact));
      CHECK_FALSE((exact != exact && floats[i] == floats[i]));
    }
    const Bytes awkward = support::awkward_bytes(DType::f32, 100'003, 7);
    Bytes narrowed(100'003 * 2);
    dtrain::kernels::convert(DType::f32, awkward.data(), dtype, narrowed.data(), 100'003);
    bool right = true;
    for (std::size_t i = 0; i < 100'003; ++i) {
      float value = 0;
      std::uint16_t half = 0;
      std::memcpy(&value, awkward.data() + 4 * i, 4);
      std::memcpy(&half, narrowed.data() + 2 * i, 2);
      right = right && half == (value == value ? Format::bits(value) : Format::nan);
    }
    CHECK(right);
  };
  check(support::F16(), DType::f16);
  check(support::Bf16(), DType::bf16);
}

TEST_CASE("no partial result of an average is beyond the contributions, which are at half of the largest value") {
  support::Combinations(both, support::all_dtypes, std::array{9, 10})
      .for_each([&](Accumulate accumulate, DType dtype, int ranks) {
        INFO(dtrain::name(dtype), " on ", ranks, ", accumulated as ", dtrain::name(accumulate));
        const std::vector<Bytes> given(static_cast<std::size_t>(ranks), support::large_values(dtype, 100));
        const PartialReduction reduction(dtype, ReduceOp::average, ranks, accumulate);
        CHECK(support::is_large_value(dtype, chain(reduction, dtype, given, 100), 2 * ranks));
      });
}
