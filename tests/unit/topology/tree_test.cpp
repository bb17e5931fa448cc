#include "unit/topology/prelude.hpp"

using Channels = dtrain::topology::Tree::Rebind<SharedMemory>;

static_assert(dtrain::topology::SupportsBackend<dtrain::topology::Tree, SharedMemory>);

TEST_CASE("a tree reduces every element type by every operation, for any length, in place and not") {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8})
    topology_test::check_exact<Channels>(ranks, {}, {0, 1, 1003});
}

TEST_CASE("a tree accumulates 16-bit floats as f32 where it is told to") {
  topology_test::check_exact<Channels>(5, {}, {1, 1003}, dtrain::Accumulate::f32);
}

TEST_CASE("a tree averages values whose sum overflows") {
  topology_test::check_large<Channels>(9);
  topology_test::check_large<Channels>(10);
}

TEST_CASE("a tree gives the same bits on every rank and in every run, near the exact average") {
  for (const int ranks : {2, 3, 7})
    topology_test::check_bits<Channels>(ranks, {}, 700'003);
}
