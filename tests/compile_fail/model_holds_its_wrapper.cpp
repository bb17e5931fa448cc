// A class that holds its own wrapper is not complete where the wrapper's type is needed.
// expect: dtrain: the model's class is not complete here, as it holds its own wrapper
// one error
#include <memory>
#include <vector>

#include "dtrain/dtrain.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

struct Trainer {
  explicit Trainer(const dtrain::ProcessGroup<Policy>& group);
  std::vector<dtrain::Parameter> parameters() { return {}; }
#ifdef DTRAIN_COMPILE_FAIL
  dtrain::DistributedDataParallel<Trainer, Policy> ddp;
#else
  std::unique_ptr<dtrain::DistributedDataParallel<Trainer, Policy>> ddp;
  dtrain::DistributedDataParallel<dtrain::ParameterList, Policy> of_list;
#endif
};
