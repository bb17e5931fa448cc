#include "unit/topology/prelude.hpp"

using Channels = dtrain::topology::Ring::Rebind<SharedMemory>;

static_assert(dtrain::topology::SupportsBackend<dtrain::topology::Ring, SharedMemory>);

TEST_CASE("a ring reduces every element type by every operation, for any length, in place and not") {
  for (const int ranks : {1, 2, 3, 4, 8})
    topology_test::check_exact<Channels>(ranks, {}, {0, 1, 7, 1003});
}

TEST_CASE("a ring accumulates 16-bit floats as f32 where it is told to") {
  topology_test::check_exact<Channels>(3, {}, {1, 1003}, dtrain::Accumulate::f32);
}

TEST_CASE("a ring averages values whose sum overflows") {
  topology_test::check_large<Channels>(9);
  topology_test::check_large<Channels>(10);
}

TEST_CASE("a ring gives the same bits on every rank and in every run, near the exact average") {
  for (const int ranks : {2, 3})
    topology_test::check_bits<Channels>(ranks, {}, 1'000'003);
}
