// std::int16_t has no DType, a struct has several numbers, and a float of 8 bits too few digits: all are moved, and no
// ReduceOp says how to reduce them.
// expect: dtrain: numbers of this type can be moved (broadcast, all_gather, send, recv), and not reduced
// expect: dtrain: elements of this type can be moved (broadcast, all_gather, send, recv), and a ReduceOp does not say
// expect: dtrain: floats of 8 bits can be moved (broadcast, all_gather, send, recv), and not reduced
// expect: dtrain: all_reduce(value, op) takes one number of a type that dtrain reduces
#include <cstdint>
#include <utility>
#include <vector>

#include "dtrain/dtrain.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

struct Split {
  double gain;
  int feature;
};

void reduce(const dtrain::ProcessGroup<Policy>& group, std::vector<std::int16_t>& values, std::vector<Split>& splits,
            std::vector<dtrain::float8_e4m3>& floats, long double loss, const std::pair<float, int>& best) {
#ifdef DTRAIN_COMPILE_FAIL
  group.all_reduce(values, dtrain::ReduceOp::max);
  group.all_reduce(splits, dtrain::ReduceOp::max);
  group.all_reduce(floats, dtrain::ReduceOp::average);
  static_cast<void>(group.all_reduce(loss));
  static_cast<void>(group.all_reduce(best, dtrain::ReduceOp::min));
#else
  group.broadcast(values, 0);
  group.broadcast(splits, 0);
  group.broadcast(floats, 0);
  static_cast<void>(group.all_reduce(static_cast<double>(loss)));
  Split mine{best.first, best.second};
  mine = group.all_reduce(mine, [](const Split& a, const Split& b) { return b.gain < a.gain ? b : a; });
#endif
}
