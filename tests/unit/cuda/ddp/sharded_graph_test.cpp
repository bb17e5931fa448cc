// A step with a ShardedOptimizer that is captured in a CUDA graph: each replay is one more update.

#include "dtrain/ddp/precision/loss_scaler.hpp"
#include "support/sanitized.hpp"
#include "unit/cuda/ddp/sharded_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace cuda_sharded_graph_test {

using namespace sharded_model;
using dtrain::ShardedOptimizer;
using dtrain::ShardedOptions;
using dtrain::StepOptions;
namespace optimizers = dtrain::optimizers;

/// Weights after each step of one rank, the first ones with the first rate.
std::vector<Weights<float>> expected_weights(int steps, int steps_with_first, float first, float second) {
  std::vector<Weights<float>> all;
  run_well<HostPolicy>(1, [&](const dtrain::ProcessGroup<HostPolicy>& group) {
    HostModel<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}};
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{.rate = first}};
    for (int step = 0; step < steps; ++step) {
      if (step == steps_with_first) optimizer.rule().rate = second;
      ddp.backward(model.backward(step, 0), optimizer);
      all.push_back(model.values);
    }
  });
  return all;
}

void expect_replays(const ShardedOptions& stage, int warm_up) {
  constexpr int replays = 6;
  const std::vector<Weights<float>> expected = expected_weights(warm_up + replays + 3, warm_up + 4, 0.01F, 0.003F);
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{.rate = 0.01F}, stage};
    std::size_t step = 0;
    const auto eager = [&] {
      ddp.backward(model.backward(static_cast<int>(step), 0), optimizer);
      CHECK(equal_bits(model.weights(), expected[step++]));
    };
    for (int i = 0; i < warm_up; ++i)
      eager();
    const Graph graph = captured_step(model, ddp, optimizer);
    CHECK(optimizer.steps() == step);
    for (int i = 0; i < replays; ++i) {
      if (i == 4) optimizer.rule().rate = 0.003F;
      model.block();
      model.set_gradients(static_cast<int>(step), 0);
      graph.launch(model.stream(0));
      CHECK(equal_bits(model.weights(), expected[step++]));
      CHECK(optimizer.steps() == step);
    }
    eager();
    model.set_gradients(static_cast<int>(step), 0);
    graph.launch(model.stream(0));  // behind a step of the host, which nobody has waited for, there is another one
    CHECK(equal_bits(model.weights(), expected[step++]));
    eager();
    CHECK(optimizer.steps() == step);
  });
}

TEST_CASE("each replay updates, with the number of its update and the present rate, to the bit") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  for (const int warm_up : {0, 2}) {
    CAPTURE(warm_up);
    expect_replays({}, warm_up);
    expect_replays({.early_update = true}, warm_up);
    expect_replays({.stage = 2}, warm_up);
  }
}

TEST_CASE(
    "after a capture, a step has the rule that it begins with, though the program changes it before the step runs") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const std::vector<Weights<float>> expected = expected_weights(2, 1, 0.01F, 0.003F);
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{.rate = 0.01F}};
    const Graph graph = captured_step(model, ddp, optimizer);
    support::Gate gate;
    model.block();
    model.set_gradients(0, 0);
    support::enqueue_on_host(model.stream(0), [&] { gate.pass(); });
    ddp.backward(pass_of(model), optimizer);
    optimizer.rule().rate = 0.003F;
    gate.open();
    CHECK(equal_bits(model.weights(), expected[0]));
    ddp.backward(model.backward(1, 0), optimizer);
    CHECK(equal_bits(model.weights(), expected[1]));
  });
}

TEST_CASE("wait() after a capture waits for the step before it") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{}};
    support::Gate gate;
    std::atomic<bool> has_run{false};
    model.set_gradients(0, 0);
    support::enqueue_on_host(model.stream(0), [&] {
      gate.pass();
      has_run = true;
    });
    ddp.backward(pass_of(model), optimizer);
    const Graph graph = captured_step(model, ddp, optimizer);
    std::thread opener([&] {
      std::this_thread::sleep_for(50ms);  // time for a wait() that waits for nothing to return
      gate.open();
    });
    optimizer.wait();
    CHECK(has_run.load());
    opener.join();
    model.block();
  });
}

TEST_CASE("an optimizer that goes after a capture, while a step cannot run, leaves its memory to the step") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  if (support::is_sanitized) return dtrain_test::skip("the memory is leaked on purpose");
  const std::vector<Weights<float>> expected = expected_weights(1, 1, 0.01F, 0.01F);
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
    support::Gate gate;
    {
      ShardedOptimizer optimizer{ddp, optimizers::AdamW{.rate = 0.01F}};
      { const Graph graph = captured_step(model, ddp, optimizer); }
      model.set_gradients(0, 0);
      support::enqueue_on_host(model.stream(0), [&] { gate.pass(); });
      ddp.backward(pass_of(model), optimizer);
    }
    gate.open();
    CHECK(equal_bits(model.weights(), expected[0]));
  });
}

/// Of a captured step, which is refused. @param sharded whether an optimizer has it
std::string sentence_of_capture(const StepOptions& options, bool sharded) {
  const std::vector<RankEnd> ends = run_groups<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.reorder_gradients = false}};
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{}};
    const auto pass = [&](Ready ready) {
      for (std::size_t i = model.parameters().size(); i-- > 0;)
        ready(i, model.stream(0).handle());
    };
    check(cudaStreamBeginCapture(model.stream(0).native(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    const std::string sentence =
        support::sentence_of([&] { sharded ? ddp.backward(pass, optimizer, options) : ddp.backward(pass, options); });
    cudaGraph_t graph = nullptr;
    static_cast<void>(quiet(cudaStreamEndCapture(model.stream(0).native(), &graph)));
    if (graph != nullptr) static_cast<void>(quiet(cudaGraphDestroy(graph)));
    throw std::runtime_error(sentence);
  });
  return ends[0].text;
}

TEST_CASE("a captured step with a LossScaler, or whose function inspects the gradients, is refused in a sentence") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  dtrain::LossScaler scaler({.initial_scale = 8});
  const auto inspect = [](dtrain::StepGradients&) {
    FAIL("a captured step has no gradients");
    return true;
  };
  for (const bool sharded : {true, false}) {
    CAPTURE(sharded);
    for (const StepOptions& options : {StepOptions{.scaler = &scaler}, StepOptions{.inspect = inspect}}) {
      CHECK_CONTAINS(sentence_of_capture(options, sharded),
                     "a step with a LossScaler, or whose function inspects the gradients, was captured in a CUDA "
                     "graph, but the host decides by the norm in each such step; give a DeviceLossScaler, or capture "
                     "a step without");
    }
  }
  CHECK(scaler.scale() == 8);
}

}  // namespace cuda_sharded_graph_test
