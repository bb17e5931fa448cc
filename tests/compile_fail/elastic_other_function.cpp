// A function of another signature for an elastic job.
// expect: dtrain: train(function) calls function(group) with a dtrain::ProcessGroup<Policy>
// one error
#include "dtrain/dtrain.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

int train(const dtrain::Elastic<Policy>& job) {
#ifdef DTRAIN_COMPILE_FAIL
  return job.train([] {});
#else
  return job.train([](dtrain::ProcessGroup<Policy>) {});
#endif
}
