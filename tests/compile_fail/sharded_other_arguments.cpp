// A ShardedOptimizer named with the policy in place of the wrapper's communicator.
// expect: dtrain: the second argument of ShardedOptimizer is the communicator of its wrapper
// one error
#include "compile_fail/host_model.hpp"

using Ddp = dtrain::DistributedDataParallel<Model, Policy>;

struct Trainer {
#ifdef DTRAIN_COMPILE_FAIL
  dtrain::ShardedOptimizer<dtrain::optimizers::AdamW, Policy> optimizer;
#else
  Ddp::Sharded<dtrain::optimizers::AdamW> optimizer;
#endif
};
