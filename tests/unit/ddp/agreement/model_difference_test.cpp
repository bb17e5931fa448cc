#include "unit/ddp/prelude.hpp"

namespace {

std::string difference(const ModelSignature& mine, const ModelSignature& theirs) {
  return first_difference(mine, 2, theirs, 0).value_or("none");
}

}  // namespace

TEST_CASE("equal signatures have no difference") {
  CHECK(difference(two_layers(), two_layers()) == "none");
}

TEST_CASE("the first difference names both ranks and both things") {
  const ModelSignature theirs = two_layers();

  ModelSignature mine = two_layers();
  mine.parameters[0].shape = {784, 128};
  mine.parameters[1].shape = {128};
  CHECK(difference(mine, theirs) ==
        "rank 2's parameter 0 'fc1.weight' is f32 [784, 128], rank 0's is f32 [784, 256]; build the same model on all "
        "ranks");

  mine = two_layers();
  mine.parameters[2].dtype = DType::f32;
  CHECK(difference(mine, theirs) ==
        "rank 2's parameter 2 'scale' is f32 [], rank 0's is f64 []; build the same model on all ranks");

  mine = two_layers();
  mine.parameters[1].device = dtrain::DeviceKind::cuda;
  CHECK(
      difference(mine, theirs) ==
      "rank 2's parameter 1 'fc1.bias' is f32 [256] on cuda, rank 0's is f32 [256]; build the same model on all ranks");

  mine = two_layers();
  std::swap(mine.parameters[0], mine.parameters[1]);
  CHECK(difference(mine, theirs) ==
        "rank 2's parameter 0 'fc1.bias' is f32 [256], rank 0's is 'fc1.weight', f32 [784, 256]; build the same model "
        "on all ranks");

  mine = two_layers();
  mine.parameters.pop_back();
  CHECK(difference(mine, theirs) ==
        "rank 0 has 3 parameters, rank 2 has 2; the first that only rank 0 has is 2 "
        "'scale', f64 []; build the same model on all ranks");
  CHECK(difference(theirs, mine) ==
        "rank 2 has 3 parameters, rank 0 has 2; the first that only rank 2 has is 2 "
        "'scale', f64 []; build the same model on all ranks");
}

TEST_CASE("options are compared, and come before parameters") {
  ModelSignature mine = two_layers();
  mine.parameters.clear();
  mine.deterministic = true;
  CHECK(difference(mine, two_layers()) ==
        "rank 2's DdpOptions::deterministic is true, rank 0's is false; set it alike on all ranks");
  mine.accumulate = dtrain::Accumulate::f32;
  CHECK(difference(mine, two_layers()) ==
        "rank 2's DdpOptions::accumulate is f32, rank 0's is element; set it alike on all ranks");
  mine.measures_plan = true;
  CHECK(difference(mine, two_layers()) ==
        "rank 2's DdpOptions::plan is measured, rank 0's is given; set it alike on all ranks");
  mine = two_layers();
  mine.scales_averages = true;
  CHECK(difference(mine, two_layers()) ==
        "the CUDA driver of rank 0 does not load dtrain's kernel that scales gradients, that of rank 2 does; run one "
        "driver version on all hosts, or set DdpOptions::reduce_op to sum and divide the loss");
  mine.reduce_op = dtrain::ReduceOp::sum;
  CHECK(difference(mine, two_layers()) ==
        "rank 2's DdpOptions::reduce_op is sum, rank 0's is average; set it alike on all ranks");
  mine.first_bucket_bytes = 7;
  CHECK(difference(mine, two_layers()) ==
        "rank 2's DdpOptions::first_bucket_bytes is 7, rank 0's is 1; set it alike on all ranks");
  mine.bucket_bytes = 9;
  CHECK(difference(mine, two_layers()) ==
        "rank 2's DdpOptions::bucket_bytes is 9, rank 0's is 25; set it alike on all ranks");
}

TEST_CASE("what ranks may leave out is compared") {
  ModelSignature mine = two_layers();
  mine.broadcast_buffers = true;
  CHECK(difference(mine, two_layers()) ==
        "rank 2's DdpOptions::broadcast_buffers is true, rank 0's is false; set it alike on all ranks");
  mine.allow_unused_parameters = true;
  CHECK(difference(two_layers(), mine) ==
        "rank 2's DdpOptions::allow_unused_parameters is false, rank 0's is true; set it alike on all ranks");
  mine.reorder_gradients = true;
  CHECK(difference(mine, two_layers()) ==
        "rank 2's DdpOptions::reorder_gradients is true, rank 0's is false; set it alike on all ranks");
}

TEST_CASE("names from another process are cut and cannot act on a terminal") {
  ModelSignature theirs = two_layers();
  theirs.parameters[0].name = "\x1b[2J" + std::string(500, 'x');
  const std::string text = difference(two_layers(), theirs);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.size() < 300);
}
