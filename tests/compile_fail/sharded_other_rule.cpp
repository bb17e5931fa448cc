// A rule that updates nothing.
// expect: dtrain: the rule needs operator()(weights, gradients, state, info) const
// one error
#include <vector>

#include "dtrain/dtrain.hpp"

struct Model {
  std::vector<dtrain::Parameter> parameters() { return {}; }
};

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

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
