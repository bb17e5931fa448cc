// DistributedDataParallel borrows the model, so a temporary would be gone at once.
// expect: dtrain: DistributedDataParallel borrows its model
// one error
#include "compile_fail/host_model.hpp"

void wrap(const dtrain::ProcessGroup<Policy>& group) {
#ifdef DTRAIN_COMPILE_FAIL
  dtrain::DistributedDataParallel ddp{Model{}, group};
#else
  Model model;
  dtrain::DistributedDataParallel ddp{model, group};
#endif
}
