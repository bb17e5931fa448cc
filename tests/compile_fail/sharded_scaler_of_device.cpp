// The scaler of models in device memory, in a step of a model in host memory.
// expect: dtrain: DeviceLossScaler is for models in device memory: in host memory give the step a LossScaler
// one error
#include "compile_fail/host_model.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Scaler = dtrain::ddp::DeviceLossScaler;
#else
using Scaler = dtrain::LossScaler;
#endif

void train(Model& model, const dtrain::ProcessGroup<Policy>& group, Scaler& scaler) {
  dtrain::DistributedDataParallel ddp{model, group};
  dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::Sgd{}};
  ddp.backward([](dtrain::Ready) {}, optimizer, dtrain::ClipGradients(1.0, &scaler));
}
