// ctest: TIMEOUT 120
#include "support/leftover_keys.hpp"
#include "dtrain/policy.hpp"
#include "unit/gloo/prelude.hpp"

#if !DTRAIN_WITH_GLOO

TEST_CASE("keys that channels over Gloo leave") {
  dtrain_test::skip("no Gloo was found when this program was built (libgloo-dev)");
}

#else

TEST_CASE("channels over Gloo leave no key in the store, on one host and on two") {
  using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Gloo, dtrain::topology::Flat>;
  using Sizes = std::vector<std::pair<std::size_t, std::size_t>>;
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    CHECK(support::left_in_store<Policy>(ranks) == Sizes{{0, 0}, {0, 0}});
  }
  CHECK(support::left_in_store<Policy>(4, {"a", "a", "b", "b"}) == Sizes{{0, 0}, {0, 0}});
}

#endif
