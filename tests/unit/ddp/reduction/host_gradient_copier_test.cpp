#include "dtrain/ddp/reduction/gradient_copier.hpp"
#include "unit/ddp/prelude.hpp"

using dtrain::stream::host::Queue;
using dtrain::stream::host::StreamRef;

TEST_CASE("the stream's queue holds a whole step: launching its buckets runs none of their work") {
  constexpr std::size_t buckets = 300;
  std::vector<float> gradients(buckets, 1.0F);
  std::vector<dtrain::Parameter> parameters;
  for (std::size_t i = 0; i < buckets; ++i) {
    const dtrain::TensorView view = dtrain::tensor_view(&gradients[i], {1});
    parameters.push_back({"p" + std::to_string(i), view, view});
  }
  const std::vector<dtrain::ddp::GradientSize> sizes = dtrain::ddp::gradient_sizes(parameters);
  dtrain::ddp::BucketPlan plan = dtrain::ddp::plan_buckets(sizes);
  REQUIRE(plan.buckets.size() < buckets);
  std::vector<std::byte> arena(plan.arena_bytes);
  dtrain::ddp::GradientTable table(parameters, plan, arena.data());
  dtrain::ddp::StepMeter meter(buckets);
  Queue queue;
  dtrain::ddp::HostGradientCopier<StreamRef> copier(queue.ref(), table, plan, meter);
  plan = dtrain::ddp::plan_buckets(sizes, BucketCaps{0, 0});
  REQUIRE(plan.buckets.size() == buckets);
  meter.plan(plan);
  copier.rebuild_buckets();  // as after the first step
  copier.reserve(1);
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    copier.before_collective(bucket);
    queue.ref().enqueue([]() noexcept {});
    copier.after_collective(bucket);
  }
  CHECK(queue.published() == 3 * buckets);
  CHECK(queue.completed() == 0);
  std::size_t waits = 0;
  copier.finish([&](StreamRef::Event& reduced) {
    ++waits;
    CHECK(reduced.block_until_complete(dtrain::Deadline::after(std::chrono::seconds(60))) ==
          dtrain::stream::WaitResult::complete);
    CHECK(queue.completed() == 3 * waits);
  });
  CHECK(waits == buckets);
}
