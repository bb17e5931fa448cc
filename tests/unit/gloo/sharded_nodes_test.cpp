#include "dtrain/ddp/sharded/optimizers.hpp"
#include "unit/gloo/prelude.hpp"
#include "unit/public_interface/shared_memory_job.hpp"
#include "unit/public_interface/whole_optimizer.hpp"

#if !DTRAIN_WITH_GLOO

TEST_CASE("sharded optimizers over Gloo") {
  dtrain_test::skip("no Gloo was found when this program was built (libgloo-dev)");
}

#else

TEST_CASE("on two nodes of two, Hierarchical shards an optimizer with the bits of its all_reduce") {
  using Nodes = dtrain::topology::Hierarchical<dtrain::backend::SharedMemory>;
  using NodesPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Gloo, Nodes>;
  for (const std::size_t bucket_bytes : {std::size_t{3000}, std::size_t{1} << 20}) {
    CAPTURE(bucket_bytes);
    const auto body = [&](const dtrain::ProcessGroup<NodesPolicy>& group) {
      using whole_optimizer::wrong_steps;
      const dtrain::DdpOptions options{.bucket_bytes = bucket_bytes};
      const dtrain::optimizers::AdamW rule{.rate = 0.01F};
      for (const bool frees : {false, true}) {
        const dtrain::ShardedOptions states{.early_update = frees};
        const dtrain::ShardedOptions gradients{.stage = 2, .early_update = frees};
        CHECK(wrong_steps<front_test::BindingModel>(group, rule, options, true, states) == 0);
        CHECK(wrong_steps<front_test::Model>(group, rule, options, false, gradients) == 0);
      }
    };
    run_well<NodesPolicy>(4, body, support::patience_with_ranks, {"a", "a", "b", "b"});
  }
}

#endif
