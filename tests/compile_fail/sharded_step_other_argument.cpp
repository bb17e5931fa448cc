// A loss scaler itself as the third argument of a step, as it was before StepOptions.
// expect: dtrain: the third argument of backward is a dtrain::StepOptions: {.clip_norm = 1.0, .scaler = &scaler,
// one error
#include "compile_fail/host_model.hpp"

void train(Model& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::DistributedDataParallel ddp{model, group};
  dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::Sgd{}};
  dtrain::LossScaler scaler;
#ifdef DTRAIN_COMPILE_FAIL
  ddp.backward([](dtrain::Ready) {}, optimizer, scaler);
#else
  ddp.backward([](dtrain::Ready) {}, optimizer, {.scaler = &scaler});
#endif
}
