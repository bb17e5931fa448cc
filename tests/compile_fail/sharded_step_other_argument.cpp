// A loss scaler that ends with the call that begins a step.
// expect: dtrain: the loss scaler given to a step is a temporary: it would not outlive the step's work
// one error
#include "compile_fail/host_model.hpp"

void train(Model& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::DistributedDataParallel ddp{model, group};
  dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::Sgd{}};
  dtrain::LossScaler scaler;
#ifdef DTRAIN_COMPILE_FAIL
  ddp.begin(optimizer, dtrain::LossScaler{}).finish();
#else
  ddp.begin(optimizer, scaler).finish();
#endif
}
