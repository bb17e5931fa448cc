// A model that DistributedDataParallel cannot ask for its parameters.
// expect: dtrain: Model needs parameters(): a sized range of dtrain::Parameter
// one error
#include <vector>

#include "dtrain/dtrain.hpp"

struct Model {
#ifdef DTRAIN_COMPILE_FAIL
  std::vector<dtrain::Parameter> params() {
    return {};
  }
#else
  std::vector<dtrain::Parameter> parameters() {
    return {};
  }
#endif
};

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

void wrap(Model& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::DistributedDataParallel ddp{model, group};
}
