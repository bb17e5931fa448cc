// ctest: TIMEOUT 120
#include <doctest/doctest.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/policy.hpp"
#include "dtrain/topology/hierarchical.hpp"
#include "dtrain/topology/ring.hpp"
#include "support/leftover_keys.hpp"

namespace {

using Sizes = std::vector<std::pair<std::size_t, std::size_t>>;

template <class Topology>
using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory, Topology>;

}  // namespace

TEST_CASE("wrappers, splits, checkpoints and timelines leave no key in the store") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    CHECK(support::left_in_store<Policy<dtrain::topology::Flat>>(ranks) == Sizes{{0, 0}, {0, 0}});
  }
}

TEST_CASE("nor do topologies, which have channels of their own") {
  CHECK(support::left_in_store<Policy<dtrain::topology::Ring>>(3) == Sizes{{0, 0}, {0, 0}});
  CHECK(support::left_in_store<Policy<dtrain::topology::Hierarchical<>>>(4) == Sizes{{0, 0}, {0, 0}});
}
