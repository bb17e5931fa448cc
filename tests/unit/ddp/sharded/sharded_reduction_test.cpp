// ShardedReduction: a step sends each element once to be reduced and once as a new weight, which is what one all-reduce
// sends, for any number of ranks and in both stages.

#include "dtrain/ddp/sharded/sharded_reduction.hpp"
#include "unit/ddp/prelude.hpp"

namespace sharded_reduction_test {

using support::CountingCommunicator;
using support::Traffic;

/// On a stream that runs work at once there is nothing to wait for.
struct RunBuckets final : dtrain::ddp::StepWork<CountingCommunicator>::Buckets {
  void wait_for_bucket(std::size_t) override {}
  void wait_for_event(support::ImmediateStream::Event&) override {}
  void unpack() override {}
};

/// A model of f32 parameters, whose step runs with zero gradients.
struct Model {
  explicit Model(const std::vector<std::size_t>& sizes) {
    for (const std::size_t size : sizes) {
      values.emplace_back(size, 1.0F);
      const dtrain::TensorView view =
          dtrain::tensor_view(values.back().data(), dtrain::Shape{static_cast<std::int64_t>(size)});
      parameters.push_back({"p", view, view});
    }
    plan = dtrain::ddp::plan_buckets(dtrain::ddp::gradient_sizes(parameters), {4096, 16384});
  }

  Traffic step(int ranks, int stage, const dtrain::StepOptions& options = {}) {
    Traffic traffic;
    CountingCommunicator channel(traffic, ranks);
    const auto keep = [](std::span<float>, std::span<const float>, const dtrain::StepInfo&) {};
    const auto rule = dtrain::ddp::ShardedParameters::Rule::of(std::make_shared<const decltype(keep)>(keep));
    dtrain::ddp::ShardedReduction<CountingCommunicator> reduction(
        dtrain::ddp::ShardedParameters(parameters, plan, channel.rank(), ranks, 2, rule), plan, {.stage = stage},
        norms);
    RunBuckets run;
    std::vector<std::vector<float>> buckets;
    reduction.begin(run, options);
    for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
      std::vector<float>& memory = buckets.emplace_back(plan.buckets[i].bytes / sizeof(float));
      reduction.launch(i, dtrain::buffer_view(std::span(memory)), dtrain::ReduceOp::average, channel, {});
    }
    updates = reduction.finish(channel, {});
    return traffic;
  }

  std::size_t elements() const {
    std::size_t elements = 0;
    for (const auto& bucket : plan.buckets)
      elements += bucket.bytes / sizeof(float);
    return elements;
  }

  std::vector<std::vector<float>> values;
  std::vector<dtrain::Parameter> parameters;
  dtrain::ddp::BucketPlan plan;
  dtrain::ddp::BucketNorms norms;
  bool updates = false;  ///< what the last step says
};

TEST_CASE("a sharded step reduces each element once and gathers it once, as one all-reduce does") {
  Model model({5000, 3, 0, 4096, 1, 129, 2048, 77});
  REQUIRE(model.plan.buckets.size() > 2);
  for (const int ranks : {1, 2, 3, 7, 64}) {
    CAPTURE(ranks);
    for (const int stage : {1, 2}) {
      CAPTURE(stage);
      const Traffic traffic = model.step(ranks, stage);
      CHECK(traffic.reduce_scattered == traffic.gathered);
      CHECK(traffic.gathered + traffic.all_reduced == model.elements());
      CHECK(traffic.all_reduced < 16 * static_cast<std::size_t>(ranks) * model.plan.buckets.size());
      CHECK(traffic.norms == 0);
      CHECK((model.updates && !model.norms.is_measured()));
    }
  }
}

TEST_CASE("a step that needs the norm sends one number more, and clips without a further one") {
  Model model({5000, 3, 4096});
  for (const dtrain::StepOptions& options :
       {dtrain::StepOptions{.clip_norm = 1}, dtrain::StepOptions{.measure_norm = true}}) {
    const Traffic traffic = model.step(3, 1, options);
    CHECK(traffic.gathered == traffic.reduce_scattered);
    CHECK(traffic.norms == 1);
    CHECK((model.updates && model.norms.norm().norm == 0));
  }
}

TEST_CASE("a step with an inspection sends one number more, and no weights if it is refused") {
  Model model({5000, 3, 4096});
  for (const bool updates : {true, false}) {
    CAPTURE(updates);
    const dtrain::StepOptions options{.inspect = [updates](dtrain::StepGradients&) { return updates; }};
    for (const int stage : {1, 2}) {
      CAPTURE(stage);
      const Traffic traffic = model.step(3, stage, options);
      CHECK(traffic.reduce_scattered + traffic.all_reduced == model.elements());
      CHECK(traffic.gathered == (updates ? traffic.reduce_scattered : 0));
      CHECK(traffic.norms == 1);
      CHECK(model.updates == updates);
    }
  }
}

}  // namespace sharded_reduction_test
