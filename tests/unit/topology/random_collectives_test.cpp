#include "support/random_collectives.hpp"
#include "unit/topology/prelude.hpp"

using support::rounds_of_test;
using support::run_random_rounds;

TEST_CASE("random collectives are those of a serial reference, to the bit in shared memory") {
  run_random_rounds<SharedMemory>(1, rounds_of_test(2), 10, 1, 20, true);
}

TEST_CASE("random collectives are those of a serial reference round a ring") {
  run_random_rounds<topology::Ring::Rebind<SharedMemory>>(100'000, rounds_of_test(2), 10, 1, 20);
}

TEST_CASE("random collectives are those of a serial reference through a tree") {
  run_random_rounds<topology::Tree::Rebind<SharedMemory>>(200'000, rounds_of_test(2), 10, 1, 20);
}

TEST_CASE("random collectives are those of a serial reference on one to four nodes") {
  run_random_rounds<topology::Hierarchical<>::Rebind<SharedMemory>>(300'000, rounds_of_test(4), 10, 4, 20);
}

TEST_CASE("random collectives are those of a serial reference on nodes of as many successive ranks") {
  using Channels = topology::Hierarchical<>::Rebind<SharedMemory>;
  std::uint64_t seed = 350'000;
  for (const std::vector<int>& node_of : {std::vector<int>{0, 0}, {0, 0, 1, 1}, {0, 0, 0, 1, 1, 1, 2, 2, 2}}) {
    for (const auto accumulate : {dtrain::Accumulate::element, dtrain::Accumulate::f32}) {
      const int ranks = static_cast<int>(node_of.size());
      support::run_random_collectives<Channels>(ranks, node_of, ++seed, 40, accumulate, false);
    }
  }
}

TEST_CASE("random collectives are those of a serial reference, to the bit, with parameter servers") {
  run_random_rounds<topology::ParameterServer<2>::Rebind<SharedMemory>>(400'000, rounds_of_test(2), 10, 1, 20, true);
}
