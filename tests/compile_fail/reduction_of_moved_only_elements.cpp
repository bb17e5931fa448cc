// std::int8_t has no DType: it can be moved as the byte that it is, and what its average or maximum is nobody would
// know. A float of 8 bits has too few digits for either.
// expect: dtrain: elements of this integer type can be moved (broadcast, all_gather, send, recv), and not reduced
// expect: dtrain: floats of 8 bits can be moved (broadcast, all_gather, send, recv), and not reduced
// expect: dtrain: all_reduce(value, op) takes one number of a type that dtrain reduces
#include <cstdint>
#include <vector>

#include "dtrain/dtrain.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

void reduce(const dtrain::ProcessGroup<Policy>& group, std::vector<std::int8_t>& values,
            std::vector<dtrain::float8_e4m3>& floats, unsigned count) {
#ifdef DTRAIN_COMPILE_FAIL
  group.all_reduce(values, dtrain::ReduceOp::max);
  group.all_reduce(floats, dtrain::ReduceOp::average);
  group.all_reduce(count, dtrain::ReduceOp::sum);
#else
  group.broadcast(values, 0);
  group.broadcast(floats, 0);
  static_cast<void>(group.all_reduce(static_cast<std::int64_t>(count), dtrain::ReduceOp::sum));
#endif
}
