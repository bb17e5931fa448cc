// A backward pass that does not take a Ready.
// expect: dtrain: backward(f) calls f(ready) with a dtrain::Ready, by value
// one error
#include <vector>

#include "dtrain/dtrain.hpp"

struct Model {
  std::vector<dtrain::Parameter> parameters() { return {}; }
};

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

void step(Model& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::DistributedDataParallel ddp{model, group};
#ifdef DTRAIN_COMPILE_FAIL
  ddp.backward([](dtrain::Ready& ready) { ready(0); });
#else
  ddp.backward([](dtrain::Ready ready) { ready(0); });
#endif
}
