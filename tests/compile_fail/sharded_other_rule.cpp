// A rule that updates nothing.
// expect: dtrain: the rule needs operator()(weights, gradients, state, info) const
// one error
#include "compile_fail/host_model.hpp"

struct Rule {
#ifdef DTRAIN_COMPILE_FAIL
  void update(std::span<float>, std::span<const float>) const {}
#else
  void operator()(std::span<float>, std::span<const float>, const dtrain::StepInfo&) const {}
#endif
};

void shard(Model& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::DistributedDataParallel ddp{model, group};
  dtrain::ShardedOptimizer optimizer{ddp, Rule{}};
}
