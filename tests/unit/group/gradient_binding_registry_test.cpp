#include "dtrain/group/gradient_binding_registry.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <random>
#include <utility>
#include <vector>

using dtrain::group::GradientBinding;
using dtrain::group::GradientBindingRegistry;

namespace {

using Kept = std::vector<GradientBindingRegistry::KeptMemory>;

std::vector<std::vector<const void*>> addresses_of(const Kept& kept) {
  std::vector<std::vector<const void*>> found;
  for (const auto& each : kept)
    found.push_back(each.addresses);
  return found;
}

}  // namespace

TEST_CASE("memory is kept for the addresses that no later wrapper has bound, in whatever order they are bound") {
  std::array<char, 30> model{};
  std::mt19937 random(1);  // the same numbers in each run
  std::vector<std::vector<const void*>> expected;
  Kept kept;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto registry = std::make_shared<GradientBindingRegistry>();
    registry->start_keeping(std::move(kept));
    GradientBinding binding(registry);
    std::vector<const void*> bound;
    for (const char& place : model) {
      if (random() % 3 == 0) bound.push_back(&place);
    }
    std::shuffle(bound.begin(), bound.end(), random);
    for (const void* address : bound)
      REQUIRE(binding.add(address));
    binding.keep(std::make_shared<int>(), true);

    for (auto& former : expected) {
      std::erase_if(former,
                    [&](const void* each) { return std::find(bound.begin(), bound.end(), each) != bound.end(); });
    }
    std::erase_if(expected, [](const auto& former) { return former.empty(); });
    std::sort(bound.begin(), bound.end());
    expected.push_back(bound);
    kept = registry->take_memory(false);
    CHECK(addresses_of(kept) == expected);
  }
}
