// A step with a ShardedOptimizer that is captured in a CUDA graph: each replay is one more update.

#include "unit/cuda/ddp/sharded_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace cuda_sharded_graph_test {

using namespace sharded_model;
using dtrain::ShardedGradients;
using dtrain::ShardedOptimizer;
using dtrain::zero::Gradients;
using dtrain::zero::States;
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

template <class Stage>
void expect_replays(const Stage& stage, int warm_up) {
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
    const auto pass = [&](Ready ready) {
      model.stream(1).wait([&]() -> const Event& {
        static thread_local Event begun;
        model.stream(0).record(begun);
        return begun;
      }());
      for (std::size_t i = model.parameters().size(); i-- > 0;)
        model.compute(i, ready);
      static thread_local Event joined;
      model.stream(1).record(joined);
      model.stream(0).wait(joined);
    };
    const Graph graph = captured(
        model.stream(0),
        [&] {
          ddp.backward(pass, optimizer);
          static thread_local Event ended;
          model.stream(1).record(ended);
          model.stream(0).wait(ended);
        },
        cudaStreamCaptureModeThreadLocal);
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
    expect_replays(States{}, warm_up);
    expect_replays(States{.ready_frees_value = true}, warm_up);
    expect_replays(Gradients{}, warm_up);
  }
}

TEST_CASE("a captured step whose function inspects the gradients is refused in a sentence") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const std::vector<RankEnd> ends = run_groups<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.reorder_gradients = false}};
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{}};
    const auto pass = [&](Ready ready) {
      for (std::size_t i = model.parameters().size(); i-- > 0;)
        ready(i, model.stream(0).handle());
    };
    check(cudaStreamBeginCapture(model.stream(0).native(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    const auto inspect = [](ShardedGradients&) { return true; };
    std::string sentence = support::sentence_of([&] { ddp.backward(pass, optimizer, inspect); });
    cudaGraph_t graph = nullptr;
    static_cast<void>(quiet(cudaStreamEndCapture(model.stream(0).native(), &graph)));
    if (graph != nullptr) static_cast<void>(quiet(cudaGraphDestroy(graph)));
    throw std::runtime_error(sentence);
  });
  CHECK_CONTAINS(ends[0].text,
                 "a step whose function inspects the gradients was captured in a CUDA graph, but the host calls that "
                 "function in each step; capture a step without one");
}

}  // namespace cuda_sharded_graph_test
