// A backward pass that does not take a Ready.
// expect: dtrain: backward(f) calls f(ready) with a dtrain::Ready, by value
// one error
#include "compile_fail/host_model.hpp"

void step(Model& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::DistributedDataParallel ddp{model, group};
#ifdef DTRAIN_COMPILE_FAIL
  ddp.backward([](dtrain::Ready& ready) { ready(0); });
#else
  ddp.backward([](dtrain::Ready ready) { ready(0); });
#endif
}
