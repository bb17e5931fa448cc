#pragma once
// Calls a reduction's kernel on vectors of bytes, for every instruction set that this machine has.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "dtrain/kernels/reduction.hpp"

namespace support {

using Ranks = std::vector<std::vector<std::byte>>;

/// `test(isa)` for each that this machine has; reduction_test.cpp says which it lacks.
template <class Test>
void for_each_isa(Test test) {
  using dtrain::kernels::Isa;
  for (const Isa isa : {Isa::baseline, Isa::avx2}) {
    if (dtrain::kernels::runs_on_this_machine(isa)) {
      INFO(dtrain::kernels::name(isa));
      test(isa);
    }
  }
}

/// The result in two targets that are sources themselves, as in an all-reduce in place, and in one that is none, all
/// `offset` bytes behind an aligned address; checked to be the same, and to leave the bytes around it alone.
inline std::vector<std::byte> reduce_bytes(const dtrain::kernels::Reduction& reduction, const Ranks& ranks,
                                           std::size_t count, std::size_t offset = 0) {
  constexpr std::size_t margin = 64;
  constexpr std::byte mark{0xa5};
  const std::size_t bytes = ranks[0].size();
  std::vector<std::vector<std::byte>> memory(ranks.size() + 1, std::vector<std::byte>(bytes + 2 * margin, mark));
  std::vector<const std::byte*> sources;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::byte* const start = memory[rank].data() + offset + rank % 3;
    if (bytes > 0) {
      std::memcpy(start, ranks[rank].data(), bytes);
    }
    sources.push_back(start);
  }
  std::vector<std::byte*> targets{memory.back().data() + offset};
  std::vector<std::size_t> used{ranks.size()};
  for (const std::size_t rank : {std::size_t{0}, ranks.size() - 1}) {
    targets.push_back(memory[rank].data() + offset + rank % 3);
    used.push_back(rank);
  }
  reduction(sources, targets, count);
  const std::vector<std::byte> result(targets[0], targets[0] + bytes);
  for (std::size_t target = 0; target < targets.size(); ++target) {
    const std::vector<std::byte>& whole = memory[used[target]];
    bool untouched = true;
    for (const std::byte* byte = whole.data(); byte != whole.data() + whole.size(); ++byte)
      untouched = untouched && (*byte == mark || (byte >= targets[target] && byte < targets[target] + bytes));
    CHECK(untouched);
    CHECK((std::vector<std::byte>(targets[target], targets[target] + bytes) == result));
  }
  return result;
}

}  // namespace support
