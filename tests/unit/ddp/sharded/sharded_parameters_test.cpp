#include "dtrain/ddp/sharded/sharded_parameters.hpp"
#include "unit/ddp/prelude.hpp"

TEST_CASE("weights share memory with ranges exactly where a byte is in both") {
  std::vector<float> memory(64);
  std::mt19937 random(7);
  const auto below = [&](std::size_t bound) { return random() % bound; };
  int shared = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<dtrain::Parameter> parameters;
    std::vector<std::span<const std::byte>> ranges;
    std::vector<int> uses(memory.size() * sizeof(float));  // 1: of a weight
    bool expected = false;
    for (std::size_t i = below(6); i-- > 0;) {
      const std::size_t begin = below(memory.size());
      const std::size_t count = below(memory.size() - begin + 1) / (1 + below(20));
      parameters.push_back({"w", dtrain::tensor_view(memory.data() + begin, {static_cast<std::int64_t>(count)}), {}});
      std::fill_n(uses.begin() + static_cast<std::ptrdiff_t>(begin * sizeof(float)), count * sizeof(float), 1);
    }
    for (std::size_t i = below(6); i-- > 0;) {
      const std::size_t begin = below(uses.size());
      const std::size_t bytes = below(uses.size() - begin + 1) / (1 + below(40));
      ranges.emplace_back(reinterpret_cast<const std::byte*>(memory.data()) + begin, bytes);
      for (std::size_t byte = begin; byte < begin + bytes; ++byte)
        expected = expected || uses[byte] == 1;
    }
    REQUIRE(dtrain::ddp::detail::share_memory(ranges, parameters) == expected);
    shared += expected ? 1 : 0;
  }
  CHECK(shared > 500);
  CHECK(shared < 2500);
}
