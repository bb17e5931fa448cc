#include "dtrain/core/types/memory_ranges.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "unit/core/prelude.hpp"

namespace {

using dtrain::MemoryRanges;
using dtrain::TensorView;

TensorView bytes_at(std::byte* data, std::size_t count) {
  return {data, {static_cast<std::int64_t>(count)}, dtrain::DType::u8, {}};
}

}  // namespace

TEST_CASE("a tensor is found in the ranges exactly if its memory lies within that of one tensor") {
  constexpr std::size_t size = 40;  // small, so that ranges overlap, touch, nest and repeat
  std::vector<std::byte> memory(size);
  std::mt19937 random(1);  // the same numbers in each run
  const auto number = [&random](std::size_t most) { return random() % (most + 1); };
  const auto any_tensor = [&] {
    const std::size_t begin = number(size);
    return bytes_at(memory.data() + begin, number(std::min<std::size_t>(size - begin, 12)));
  };
  std::size_t within = 0;
  std::size_t wrong = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<TensorView> tensors(number(7));
    std::generate(tensors.begin(), tensors.end(), any_tensor);
    const MemoryRanges ranges(tensors);
    for (std::size_t begin = 0; begin <= size; ++begin) {
      for (std::size_t count = 0; begin + count <= size; ++count) {
        const TensorView part = bytes_at(memory.data() + begin, count);
        const bool lies = std::any_of(tensors.begin(), tensors.end(),
                                      [&](const TensorView& each) { return lies_within(part, each); });
        wrong += ranges.contains(part) == lies ? 0 : 1;
        within += lies ? 1 : 0;
      }
    }
  }
  CHECK(within > 1000);
  CHECK(wrong == 0);
}

TEST_CASE("a tensor over two ranges that touch lies in none of them, and no ranges contain nothing") {
  std::vector<std::byte> memory(20);
  const MemoryRanges halves({bytes_at(memory.data() + 10, 10), bytes_at(memory.data(), 10)});
  CHECK(halves.contains(bytes_at(memory.data() + 10, 10)));
  CHECK_FALSE(halves.contains(bytes_at(memory.data() + 9, 2)));
  CHECK_FALSE(MemoryRanges().contains(bytes_at(memory.data(), 1)));
  CHECK_FALSE(MemoryRanges().contains(TensorView{}));
}
