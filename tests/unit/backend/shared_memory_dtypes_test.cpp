#include "unit/backend/prelude.hpp"

namespace {

constexpr DType dtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64,
                            DType::i32, DType::u8,  DType::u32, DType::u64};
constexpr ReduceOp operations[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product};

/// Any bits at all: NaN, infinities and subnormal numbers among them.
std::vector<std::byte> any_bits(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> values(bytes);
  std::uint64_t state = seed * 0x9e37'79b9'7f4a'7c15U + 1;
  for (std::byte& value : values) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    value = static_cast<std::byte>(state >> 32U);
  }
  return values;
}

/// What the baseline kernel makes of whole inputs, in one piece.
std::vector<std::byte> expected_bits(DType dtype, ReduceOp op, const std::vector<std::vector<std::byte>>& inputs) {
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs)
    sources.push_back(input.data());
  std::vector<std::byte> result(inputs[0].size());
  std::byte* const target = result.data();
  dtrain::kernels::Reduction::of(dtype, op, dtrain::kernels::Isa::baseline)(sources, std::span(&target, 1),
                                                                            result.size() / dtrain::size_bytes(dtype));
  return result;
}

TEST_CASE("every element type and operation has the same bits on every path, whatever the values") {
  for (const int ranks : {2, 3, 6}) {
    run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread& thread) {
      const auto arena = self.communicator.allocate_blocking(std::size_t{1} << 20, Deadline::after(60s));
      for (const std::size_t count : {std::size_t{99}, std::size_t{70'001}}) {
        for (const DType dtype : dtypes) {
          const std::size_t bytes = count * dtrain::size_bytes(dtype);
          std::vector<std::vector<std::byte>> inputs;
          for (int rank = 0; rank < ranks; ++rank)
            inputs.push_back(any_bits(bytes, count + static_cast<std::uint64_t>(rank)));
          const auto& own = inputs[static_cast<std::size_t>(thread.rank())];
          for (const ReduceOp op : operations) {
            const auto expected = expected_bits(dtype, op, inputs);
            std::vector<std::byte> foreign = own;
            std::memcpy(arena.data(), own.data(), bytes);
            for (std::byte* const memory : std::array{foreign.data(), arena.data()}) {
              const BufferView view{memory, count, dtype, {}};
              self.communicator.enqueue(AllReduce{view, view, op}, self.stream.ref());
              const bool right = self.wait() && std::memcmp(memory, expected.data(), bytes) == 0;
              CHECK_MESSAGE(right, dtrain::name(op) << " of " << count << " " << dtrain::name(dtype));
            }
          }
        }
      }
    });
  }
}

TEST_CASE("sixty-four ranks reduce, gather and scatter") {
  const int ranks = 64;
  run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread& thread) {
    const auto stream = self.stream.ref();
    for (const std::size_t count : {std::size_t{5}, std::size_t{3000}}) {
      std::vector<std::int32_t> values(count * ranks, thread.rank());
      const BufferView whole = dtrain::buffer_view(std::span(values));
      const BufferView own{whole.data + static_cast<std::size_t>(thread.rank()) * count * 4, count, DType::i32, {}};
      self.communicator.enqueue(AllReduce{whole, whole, ReduceOp::max}, stream);
      self.communicator.enqueue(ReduceScatter{whole, own, ReduceOp::sum}, stream);
      self.communicator.enqueue(AllGather{own, whole}, stream);
      CHECK(self.wait());
      CHECK(values == std::vector<std::int32_t>(count * ranks, 63 * 64));
    }
  });
}

}  // namespace
