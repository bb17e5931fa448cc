#include "unit/ddp/prelude.hpp"

namespace {

/// Blocks of these sizes, each filled with its number, and what they are to become.
struct Memory {
  Memory(const std::vector<std::size_t>& sizes, const std::vector<std::size_t>& order) {
    blocks.resize(sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      blocks[i].bytes = sizes[i];
      held.insert(held.end(), sizes[i], static_cast<std::byte>(i + 1));
    }
    for (const std::size_t i : order) {
      blocks[i].target = wanted.size();
      wanted.insert(wanted.end(), sizes[i], static_cast<std::byte>(i + 1));
    }
  }

  void rearrange(std::size_t scratch_bytes) {
    std::vector<std::byte> scratch(scratch_bytes);
    const auto copy = [this](std::byte* to, const std::byte* from, std::size_t bytes) {
      overlaps = overlaps || (to < from + bytes && from < to + bytes);
      moved += bytes;
      std::memmove(to, from, bytes);
    };
    dtrain::ddp::rearrange(held.data(), std::span(blocks), std::span(scratch), copy);
  }

  std::vector<Block> blocks;
  std::vector<std::byte> held;
  std::vector<std::byte> wanted;
  std::size_t moved = 0;
  bool overlaps = false;
};

TEST_CASE("blocks of any sizes come into any order, through scratch of any size") {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::size_t> sizes(random() % 40);
    for (std::size_t& size : sizes)
      size = 1 + random() % (random() % 5 == 0 ? 300 : 20);
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    Memory memory(sizes, order);
    memory.rearrange(1 + random() % 64);
    CHECK(memory.held == memory.wanted);
    CHECK(!memory.overlaps);
  }
}

TEST_CASE("what is in order is not touched, and what is in reverse order is moved a few times only") {
  std::vector<std::size_t> order(200);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::vector<std::size_t> sizes(200, 64);
  Memory same(sizes, order);
  same.rearrange(64);
  CHECK(same.moved == 0);
  std::reverse(order.begin(), order.end());
  Memory reversed(sizes, order);
  reversed.rearrange(64);
  CHECK(reversed.held == reversed.wanted);
  CHECK(reversed.moved < 40 * reversed.held.size());
}

}  // namespace
