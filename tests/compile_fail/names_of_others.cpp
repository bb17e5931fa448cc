// Names of other libraries, which dtrain has in another form: the compiler names them.
// expect: any_source
// expect: SUM
// expect: all_reduce_async
#include <vector>

#include "dtrain/dtrain.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

void reduce(const dtrain::ProcessGroup<Policy>& group, std::vector<float>& values) {
#ifdef DTRAIN_COMPILE_FAIL
  group.recv(values, dtrain::any_source);
  group.all_reduce(values, dtrain::ReduceOp::SUM);
  group.all_reduce_async(values).wait();
#else
  group.recv(values, 0);
  group.all_reduce(values, dtrain::ReduceOp::sum);
  group.all_reduce(values, group.stream()).wait();
#endif
}
