// A stage that is none.
// expect: dtrain: the stage of a ShardedOptimizer is dtrain::zero::States or dtrain::zero::Gradients
// one error
#include "compile_fail/host_model.hpp"

#ifdef DTRAIN_COMPILE_FAIL
constexpr int stage = 2;
#else
constexpr dtrain::zero::Gradients stage;
#endif

void shard(Model& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::DistributedDataParallel ddp{model, group};
  dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::Sgd{}, stage};
}
