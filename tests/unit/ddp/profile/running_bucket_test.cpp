#include "dtrain/ddp/profile/step_meter.hpp"
#include "unit/ddp/prelude.hpp"

using dtrain::backend::Operation;
using dtrain::backend::OperationKind;

namespace {

Operation operation(OperationKind kind, std::uint64_t count) {
  Operation made;
  made.kind = kind;
  made.count = count;
  made.op = dtrain::ReduceOp::average;
  return made;
}

}  // namespace

TEST_CASE("a bucket is named with its step and the user's elements") {
  RunningBucket running;
  const std::vector<dtrain::ddp::GradientSize> sizes{{4 * 3, dtrain::DType::f32, {}}, {8 * 9, dtrain::DType::f64, {}}};
  running.plan(dtrain::ddp::plan_buckets(sizes, {0, 0}));
  CHECK(running.describe(operation(OperationKind::all_reduce, 16)) == "all_reduce (average) of 16 f32");
  running.begin(7, 1);
  CHECK(running.describe(operation(OperationKind::all_reduce, 16)) ==
        "all_reduce (average) of 3 f32 (bucket 1 of 2 in step 7)");
  CHECK(running.describe(operation(OperationKind::recv, 8)) == "recv of 8 f32 from rank 0 (bucket 1 of 2 in step 7)");
  CHECK(running.describe(operation(OperationKind::broadcast, 5)) == "broadcast of 5 f32 from rank 0 (in step 7)");
}
