#include "dtrain/group/pending_weights.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <vector>

TEST_CASE("a checkpoint of many tensors asks each optimizer once, with the memory of them all") {
  constexpr std::size_t tensors = 20000;
  std::vector<std::byte> memory(tensors);
  std::vector<std::span<const std::byte>> ranges;
  for (const std::byte& byte : memory)
    ranges.emplace_back(&byte, 1);
  dtrain::group::PendingWeights pending;
  std::vector<std::size_t> first;
  std::vector<std::size_t> second;
  pending.add(&first, [&](dtrain::group::PendingWeights::Ranges asked) { first.push_back(asked.size()); });
  pending.add(&second, [&](dtrain::group::PendingWeights::Ranges asked) { second.push_back(asked.size()); });
  pending.wait_for(ranges);
  CHECK(first == std::vector<std::size_t>{tensors});
  CHECK(second == std::vector<std::size_t>{tensors});
  pending.remove(&first);
  pending.wait_for(ranges);
  CHECK(first.size() == 1);
  CHECK(second.size() == 2);
}
