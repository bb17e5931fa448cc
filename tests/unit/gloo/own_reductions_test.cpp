#include "support/own_reduction_checks.hpp"

#include "unit/gloo/prelude.hpp"
#include "unit/public_interface/shared_memory_job.hpp"

#if !DTRAIN_WITH_GLOO

TEST_CASE("reductions of one's own over Gloo") {
  dtrain_test::skip("no Gloo was found when this program was built (libgloo-dev)");
}

#else

TEST_CASE("a function of one's own folds in the order of the ranks over Gloo, on one host and on two of two ranks") {
  using Flat = dtrain::Policy<dtrain::launch::PerProcess, Gloo>;
  using Nodes = dtrain::Policy<dtrain::launch::PerProcess, Gloo, dtrain::topology::Hierarchical<SharedMemory>>;
  support::run_well<Flat>(3, [](const auto& group) { support::check_own_reductions(group, true); });
  support::run_well<Nodes>(4, [](const auto& group) { support::check_own_reductions(group, false); },
                           support::patience_with_ranks, {"a", "a", "b", "b"});
}

#endif
