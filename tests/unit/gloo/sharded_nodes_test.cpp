#include "dtrain/backend/gloo.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>

#include "dtrain/ddp/sharded/optimizers.hpp"
#include "dtrain/topology/hierarchical.hpp"
#include "unit/public_interface/shared_memory_job.hpp"
#include "unit/public_interface/whole_optimizer.hpp"

TEST_CASE("on two nodes of two, Hierarchical shards an optimizer with the bits of its all_reduce") {
  using Nodes = dtrain::topology::Hierarchical<dtrain::backend::SharedMemory>;
  using NodesPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Gloo, Nodes>;
  for (const std::size_t bucket_bytes : {std::size_t{3000}, std::size_t{1} << 20}) {
    CAPTURE(bucket_bytes);
    std::atomic<int> wrong{0};
    const auto body = [&](const dtrain::ProcessGroup<NodesPolicy>& group) {
      using whole_optimizer::wrong_steps;
      const dtrain::DdpOptions options{.bucket_bytes = bucket_bytes};
      const dtrain::optimizers::AdamW rule{.rate = 0.01F};
      for (const bool frees : {false, true}) {
        const dtrain::zero::States states{.ready_frees_value = frees};
        const dtrain::zero::Gradients gradients{.ready_frees_value = frees};
        wrong += wrong_steps<front_test::BindingModel>(group, rule, options, true, states);
        wrong += wrong_steps<front_test::Model>(group, rule, options, false, gradients);
      }
    };
    front_test::expect_well(support::run_groups<NodesPolicy>(4, body, std::chrono::seconds(30), {"a", "a", "b", "b"}));
    CHECK(wrong == 0);
  }
}
