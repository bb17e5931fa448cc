// DistributedDataParallel borrows the model, so a temporary would be gone at once.
// expect: dtrain: DistributedDataParallel borrows its model
// one error
#include <vector>

#include "dtrain/dtrain.hpp"

struct Model {
  std::vector<dtrain::Parameter> parameters() { return {}; }
};

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

void wrap(const dtrain::ProcessGroup<Policy>& group) {
#ifdef DTRAIN_COMPILE_FAIL
  dtrain::DistributedDataParallel ddp{Model{}, group};
#else
  Model model;
  dtrain::DistributedDataParallel ddp{model, group};
#endif
}
