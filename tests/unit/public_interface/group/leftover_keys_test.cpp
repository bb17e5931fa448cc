// ctest: TIMEOUT 120
#include "support/leftover_keys.hpp"
#include "unit/public_interface/prelude.hpp"

namespace {

using Sizes = std::vector<std::pair<std::size_t, std::size_t>>;

template <class Topology>
using PolicyOver = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory, Topology>;

}  // namespace

TEST_CASE("wrappers, splits, checkpoints and timelines leave no key in the store") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    CHECK(support::left_in_store<PolicyOver<dtrain::topology::Flat>>(ranks) == Sizes{{0, 0}, {0, 0}});
  }
}

TEST_CASE("nor do topologies, which have channels of their own") {
  CHECK(support::left_in_store<PolicyOver<dtrain::topology::Ring>>(3) == Sizes{{0, 0}, {0, 0}});
  CHECK(support::left_in_store<PolicyOver<dtrain::topology::Hierarchical<>>>(4) == Sizes{{0, 0}, {0, 0}});
}
