// A ShardedOptimizer named with the policy in place of the wrapper's communicator.
// expect: dtrain: the second argument of ShardedOptimizer is the communicator of its wrapper
// one error
#include <vector>

#include "dtrain/dtrain.hpp"

struct Model {
  std::vector<dtrain::Parameter> parameters() { return {}; }
};

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

using Ddp = dtrain::DistributedDataParallel<Model, Policy>;

struct Trainer {
#ifdef DTRAIN_COMPILE_FAIL
  dtrain::ShardedOptimizer<dtrain::optimizers::AdamW, Policy> optimizer;
#else
  Ddp::Sharded<dtrain::optimizers::AdamW> optimizer;
#endif
};
