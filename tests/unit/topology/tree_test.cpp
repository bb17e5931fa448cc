#include "dtrain/topology/tree.hpp"

#include <doctest/doctest.h>

#include "unit/topology/all_reduce.hpp"

using dtrain::backend::SharedMemory;
using Channels = dtrain::topology::Tree::Over<SharedMemory>;

static_assert(dtrain::topology::WorksOn<dtrain::topology::Tree, SharedMemory>);

TEST_CASE("a tree reduces every element type by every operation, for any length, in place and not") {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8}) {
    topology_test::check_exact<Channels>(ranks, {}, {0, 1, 1003});
  }
}

TEST_CASE("a tree gives the same bits on every rank and in every run, near the exact average") {
  for (const int ranks : {2, 3, 7}) {
    topology_test::check_bits<Channels>(ranks, {}, 700'003);
  }
}
