// Names of 0.1 that are gone: what blocks has no suffix, and no call exists twice.
// expect: all_reduce_blocking
// expect: get_blocking
// expect: throw_if_failed
#include <vector>

#include "dtrain/dtrain.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

void reduce(const dtrain::ProcessGroup<Policy>& group, std::vector<float>& values) {
#ifdef DTRAIN_COMPILE_FAIL
  group.all_reduce_blocking(values, dtrain::ReduceOp::sum);
  static_cast<void>(group.store().get_blocking("key"));
  group.throw_if_failed();
#else
  group.all_reduce(values, dtrain::ReduceOp::sum);
  static_cast<void>(group.store().get("key").wait());
  group.check();
#endif
}
