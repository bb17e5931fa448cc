// A gradient that is not finite is told of, with its rank, its parameter and its element.

#include <limits>

#include "support/captured_stderr.hpp"
#include "unit/public_interface/prelude.hpp"

namespace {

using dtrain::OnNotFinite;

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

float& at(BindingModel& model, std::size_t parameter, std::size_t element) {
  return model.list[parameter].gradient.as<float>()[element];
}

/// Makes `steps` steps on two ranks; `spoil(rank, step, model)` writes gradients before the backward pass.
/// @returns what is in the log once the job has ended
template <class Spoil>
std::string log_of(Spoil spoil, int steps = 20, DdpOptions options = {}) {
  support::CapturedStderr captured;
  run_well(2, [&](const Group& group) {
    BindingModel model({3, 4, 2});
    DistributedDataParallel ddp{model, group, options};
    for (int step = 1; step <= steps; ++step) {
      for (std::size_t i = 0; i < 3; ++i)
        model.write(i, 1);
      const auto pass = [&](Ready ready) {
        spoil(group.rank(), step, model);
        all_ready(ready, 3);
      };
      ddp.backward(pass);
      model.values[0][0] += 1;
    }
  });
  return captured.text();
}

std::size_t findings(const std::string& log) {
  return support::count_of(log, " in step ");
}

}  // namespace

TEST_CASE("the rank whose gradient has a NaN is named, with the first parameter and element") {
  const std::string log = log_of([](int rank, int step, BindingModel& model) {
    if (rank == 1 && step == 7) at(model, 2, 1) = at(model, 1, 3) = not_a_number;
  });
  CHECK(log ==
        "dtrain: rank 1: the gradient of parameter 1 'layer1' has nan at [3] in step 7, the first of 2 such "
        "parameters; the "
        "weights were finite\n");
}

TEST_CASE("ranks with a finding in the same step share a line, and a line comes once until 100 steps are finite") {
  const std::string log = log_of([](int, int step, BindingModel& model) {
    if (step == 4 || step == 12) at(model, 0, 2) = -infinity;
  });
  CHECK(log ==
        "dtrain: ranks 0-1: the gradient of parameter 0 'layer0' has inf at [2] in step 4; the weights were finite\n");
}

TEST_CASE("after the first twenty steps a share of them is looked at, and each one after a finding") {
  for (int step = 200; step < 210; ++step) {
    const auto spoil = [step](int rank, int now, BindingModel& model) {
      if (rank == 0 && now >= step) at(model, 1, 0) = not_a_number;
    };
    const std::string log = log_of(spoil, step + 64);  // one of 64 successive steps is looked at
    CHECK(findings(log) == 1);
    CHECK_CONTAINS(log, "rank 0: the gradient of parameter 1 'layer1' has nan at [0] in step ");
  }
}

TEST_CASE("a weight that was not finite before is named") {
  const std::string log = log_of([](int rank, int step, BindingModel& model) {
    if (rank == 0 && step == 9) model.values[2][0] = at(model, 0, 0) = not_a_number;
  });
  CHECK_CONTAINS(
      log, "rank 0: the gradient of parameter 0 'layer0' has nan at [0] in step 9; nor was the weight 'layer2' finite");
}

TEST_CASE("with OnNotFinite::fail finish() of that rank throws the sentence, and no step passes over it") {
  const support::CapturedStderr captured;
  expect_ends(2, {"the gradient of parameter 0 'layer0' has inf at [1] in step 77; the weights were finite"},
              [](const Group& group) {
                BindingModel model({3});
                DistributedDataParallel ddp{model, group, {.on_not_finite = OnNotFinite::fail}};
                for (int step = 1; step <= 100; ++step) {
                  model.write(0, 1);
                  if (group.rank() == 1 && step == 77) at(model, 0, 1) = infinity;
                  ddp.backward([](Ready ready) { all_ready(ready, 1); });
                }
              });
}

TEST_CASE("with OnNotFinite::fail a rank whose own gradients are finite does not end the job for the sum's NaN") {
  const support::CapturedStderr captured;
  for (int turn = 0; turn < 5; ++turn) {
    expect_ends(2, {"the gradient of parameter 0 'layer0' has nan at [2] in step 7"}, [](const Group& group) {
      BindingModel model({3});
      DistributedDataParallel ddp{model, group, {.on_not_finite = OnNotFinite::fail}};
      for (int step = 1; step <= 20; ++step) {
        model.write(0, 1);
        if (group.rank() == 1 && step == 7) at(model, 0, 2) = not_a_number;
        ddp.backward([](Ready ready) { all_ready(ready, 1); }, {.measure_norm = true});
      }
    });
  }
}

TEST_CASE("of two wrappers the first finding is told, and not what it has made of the other") {
  support::CapturedStderr captured;
  run_well(2, [](const Group& group) {
    BindingModel model({3}), other({3});
    DistributedDataParallel ddp{model, group};
    DistributedDataParallel ddp_of_other{other, group};
    for (int step = 1; step <= 20; ++step) {
      model.write(0, 1);
      other.write(0, 1);
      if (group.rank() == 1 && step == 7) at(model, 0, 2) = not_a_number;
      if (step >= 8) at(other, 0, 1) = not_a_number;
      ddp.backward([](Ready ready) { all_ready(ready, 1); });
      ddp_of_other.backward([](Ready ready) { all_ready(ready, 1); });
      model.values[0][0] += 1;
      other.values[0][0] += 1;
    }
  });
  CHECK(captured.text() ==
        "dtrain: rank 1: the gradient of parameter 0 'layer0' has nan at [2] in step 7; the weights were finite\n");
}

TEST_CASE("a sharded step is looked at before its collective, and its weights are not read") {
  for (const int stage : {1, 2}) {
    CAPTURE(stage);
    support::CapturedStderr captured;
    run_well(2, [&](const Group& group) {
      Model model({3, 4});
      DistributedDataParallel ddp{model, group};
      ShardedOptimizer optimizer(ddp, optimizers::Sgd{.rate = 0.1F}, ShardedOptions{.stage = stage});
      for (int step = 1; step <= 20; ++step) {
        for (std::vector<float>& gradient : model.gradients)
          std::fill(gradient.begin(), gradient.end(), 1.0F);
        if (group.rank() == 1 && step == 7) model.gradients[1][3] = not_a_number;
        ddp.backward([](Ready ready) { all_ready(ready, 2); }, optimizer);
      }
    });
    CHECK_CONTAINS(
        captured.text(),
        "dtrain: rank 1: the gradient of parameter 1 'layer1' has nan at [3] in step 7; the weights were not read\n");
  }
}

TEST_CASE("a gradient of a divided bucket that is kept aside until the bucket's memory is free is looked at there") {
  support::CapturedStderr captured;
  run_well(2, [](const Group& group) {
    Model model({300, 300, 300, 300});
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 0, .deterministic = true}};
    ShardedOptimizer optimizer(ddp, optimizers::Sgd{.rate = 0.1F}, ShardedOptions{.stage = 2});
    for (int step = 1; step <= 12; ++step) {
      for (std::vector<float>& gradient : model.gradients)
        std::fill(gradient.begin(), gradient.end(), 1.0F);
      if (group.rank() == 1 && step == 7) model.gradients[0][299] = not_a_number;
      const auto pass = [](Ready ready) {
        for (std::size_t i = 0; i < 4; ++i)  // the last bucket's comes first
          ready(i);
      };
      ddp.backward(pass, optimizer);
    }
  });
  CHECK_CONTAINS(
      captured.text(),
      "dtrain: rank 1: the gradient of parameter 0 'layer0' has nan at [299] in step 7; the weights were not read\n");
}

TEST_CASE("a sum that overflows is told as such, where no rank's own gradient is infinite") {
  support::CapturedStderr captured;
  run_well(2, [](const Group& group) {
    BasicModel<float16> model({4});
    DistributedDataParallel ddp{model, group, {.reduce_op = ReduceOp::sum}};
    for (int step = 1; step <= 20; ++step) {
      const float large = step == 1 ? 60000.0F : 1.0F;
      std::fill(model.gradients[0].begin(), model.gradients[0].end(), float16(1.0F));
      model.gradients[0][3] = float16(large);
      ddp.backward([](Ready ready) { all_ready(ready, 1); }, {.measure_norm = true});
      model.values[0][0] = float16(static_cast<float>(step));
    }
  });
  CHECK(captured.text() ==
        "dtrain: the sum of the ranks' gradients of parameter 0 'layer0' has inf at [3] in step 1, and no rank has "
        "found one "
        "among its own; a lower loss scale or Accumulate::f32 helps\n");
}

TEST_CASE("nothing is told with OnNotFinite::ignore, or of a loss scaler's search for a scale") {
  const auto spoil = [](int, int step, BindingModel& model) {
    if (step < 8) at(model, 0, 0) = infinity;
  };
  CHECK(log_of(spoil, 20, {.on_not_finite = OnNotFinite::ignore}) == "");
  for (const int overflows : {7, 8}) {
    support::CapturedStderr captured;
    run_well(2, [&](const Group& group) {
      BindingModel model({3});
      DistributedDataParallel ddp{model, group};
      dtrain::LossScaler scaler;
      for (int step = 1; step <= 20; ++step) {
        model.write(0, 1);
        if (group.rank() == 0 && step <= overflows) at(model, 0, 2) = infinity;
        ddp.backward([](Ready ready) { all_ready(ready, 1); }, {.scaler = &scaler});
        model.values[0][0] += 1;
      }
    });
    const bool is_told = overflows == 8;
    CHECK(findings(captured.text()) == (is_told ? 1 : 0));
    if (is_told)
      CHECK_CONTAINS(captured.text(), "rank 0: the gradient of parameter 0 'layer0' has inf at [2] in step 8");
  }
}
