#include "unit/gloo/prelude.hpp"

#if !DTRAIN_WITH_GLOO

TEST_CASE("random collectives over Gloo") {
  dtrain_test::skip("no Gloo was found when this program was built (libgloo-dev)");
}

#else

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/topology/message_algorithms.hpp"
#include "support/random_collectives.hpp"
#include "unit/topology/all_reduce.hpp"

namespace topology = dtrain::topology;
using OverNodes = topology::Hierarchical<dtrain::backend::SharedMemory>::Rebind<Gloo>;

TEST_CASE("random collectives over Gloo are those of a serial reference, on one to four hosts") {
  run_random_rounds<Gloo>(1, rounds_of_test(4), 10, 4, 20);
}

TEST_CASE("random collectives over Gloo are those of a serial reference round a ring and by nodes") {
  run_random_rounds<topology::Ring::Rebind<Gloo>>(100'000, rounds_of_test(1), 6, 1, 20);
  run_random_rounds<OverNodes>(200'000, rounds_of_test(3), 8, 4, 20);
}

TEST_CASE("values whose sum overflows are averaged over Gloo, on 9 and 10 ranks of a host and on 4 hosts") {
  topology_test::check_large<Gloo>(9);
  topology_test::check_large<Gloo>(10);
  topology_test::check_large<Gloo>(4, {0, 1, 2, 3});
  topology_test::check_large<OverNodes>(4, {0, 0, 1, 2});
}

#endif
