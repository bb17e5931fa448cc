// An Elastic that is made of a temporary ElasticJob, whose worker would end at once.
// expect: deleted
// one error
#include "dtrain/dtrain.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

int steps() {
#ifdef DTRAIN_COMPILE_FAIL
  const dtrain::Elastic<Policy> job = dtrain::init_elastic<Policy>();
#else
  const dtrain::ElasticJob<Policy> job = dtrain::init_elastic<Policy>();
#endif
  return static_cast<int>(job.step());
}
