// hooks::LocalSgd: reduced steps, local steps, averages, and what is refused.

#include "unit/public_interface/prelude.hpp"

using dtrain::hooks::LocalSgd;
using whole_optimizer::backward;
using whole_optimizer::element;

namespace local_sgd_test {

/// Small ones, one without elements, and one that is averaged in place.
const std::vector<std::size_t> sizes{5, 0, 1000, 3, 400'000, 17};

/// Whether all ranks have these values, to the bit.
bool is_same_on_all(const Group& group, const std::vector<std::vector<float>>& values) {
  bool same = true;
  for (const std::vector<float>& own : values) {
    std::vector<float> first = own;
    if (!first.empty()) group.broadcast(dtrain::buffer_view(std::span(first)), 0);
    same = same && (own.empty() || std::memcmp(own.data(), first.data(), own.size() * sizeof(float)) == 0);
  }
  std::vector<float> all{same ? 1.0F : 0.0F};
  group.all_reduce(dtrain::buffer_view(std::span(all)), dtrain::ReduceOp::min);
  return all[0] == 1;
}

/// Wrong steps of 11: two reduced ones, then three times three local ones that end with an average. With this
/// optimizer, the averaged weights are those of reduced steps.
int wrong_steps(const Group& group) {
  Model reduced(sizes);
  Model local(sizes);
  DistributedDataParallel expected{reduced, group};
  LocalSgd hook{{.every = 3, .start_after = 2}};
  DistributedDataParallel ddp{local, group, {}, std::ref(hook)};
  int wrong = 0;
  for (int step = 0; step < 11; ++step) {
    expected.backward(backward(reduced, step, group.rank()));
    descend(reduced, 0.1F);
    ddp.backward(backward(local, step, group.rank()));
    const bool is_reduced = step < 2;
    for (std::size_t k = 0; k < sizes[2]; ++k)
      wrong += !is_reduced && local.gradients[2][k] != element(step, group.rank(), 2, k) ? 1 : 0;
    descend(local, 0.1F);
    const bool averages = hook.average(group);
    wrong += averages == (step == 4 || step == 7 || step == 10) ? 0 : 1;
    const bool should_be_same = is_reduced || averages || group.world_size() == 1;
    wrong += is_same_on_all(group, local.values) == should_be_same ? 0 : 1;
    wrong += !should_be_same || largest_difference(joined(reduced.values), joined(local.values)) < 2e-6 ? 0 : 1;
  }
  return wrong + (hook.steps() == 11 ? 0 : 1);
}

TEST_CASE("after the warm-up, ranks use their own gradients, and every few steps they get the average of the weights") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    run_well(ranks, [&](const Group& group) { CHECK(wrong_steps(group) == 0); });
  }
}

TEST_CASE("average_now() averages at any step, and a counter that was set goes on") {
  run_well(2, [&](const Group& group) {
    Model model(sizes);
    LocalSgd hook{{.every = 4}};
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    hook.set_steps(2);
    ddp.backward(backward(model, 0, group.rank()));
    descend(model, 0.1F);
    CHECK_FALSE(hook.average(group));
    CHECK_FALSE(is_same_on_all(group, model.values));
    hook.average_now(group);
    CHECK(is_same_on_all(group, model.values));
    CHECK(hook.average(group));
  });
}

/// The weights, which begin as 1, after 10 steps of -0.001 with an average after each, on the ranks in turn.
template <class Topology, class Backend>
std::vector<std::vector<float>> after_small_steps(const std::vector<std::string>& hosts) {
  using Policy = dtrain::Policy<dtrain::launch::PerProcess, Backend, Topology>;
  std::vector<std::vector<float>> ends(hosts.size());
  run_well<Policy>(
      static_cast<int>(hosts.size()),
      [&](const dtrain::ProcessGroup<Policy>& group) {
        Model model({100, 400'000});  // joined with others, and in place
        for (std::vector<float>& values : model.values)
          std::fill(values.begin(), values.end(), 1.0F);
        LocalSgd hook{{.every = 1}};
        DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
        for (int step = 0; step < 10; ++step) {
          ddp.backward([](Ready ready) { all_ready(ready, 2); });
          for (std::vector<float>& values : model.values) {
            for (float& value : values)
              value -= 1e-3F;
          }
          hook.average(group);
        }
        ends[static_cast<std::size_t>(group.rank())] = joined(model.values);
      },
      std::chrono::seconds(60), hosts);
  return ends;
}

TEST_CASE("a topology with a wire type does not round the weights, which a small update then could not change") {
  namespace topology = dtrain::topology;
  using dtrain::backend::SharedMemory;
  const auto check = [](const std::vector<std::vector<float>>& ends) {
    for (const std::vector<float>& end : ends) {
      REQUIRE(end.size() == 400'100);
      CHECK(std::all_of(end.begin(), end.end(), [](float value) { return std::abs(value - 0.99F) < 1e-5F; }));
    }
  };
  check(after_small_steps<topology::Hierarchical<SharedMemory, dtrain::wire::Bf16>, support::StoreBackend>({"a", "b"}));
  check(after_small_steps<topology::Hierarchical<SharedMemory, dtrain::wire::F16>, support::StoreBackend>(
      {"a", "b", "c"}));
  check(after_small_steps<topology::Hierarchical<SharedMemory, dtrain::wire::Bf16>, support::StoreBackend>(
      {"a", "a", "b", "b"}));
}

/// Buffers of floats, which averages join with weights, and of integers and 8-bit floats, which they do not.
struct WithBuffers : Model {
  WithBuffers() : Model({5}) {}
  std::vector<dtrain::TensorView> buffers() {
    return {dtrain::tensor_view(means), dtrain::tensor_view(&batches, {}), dtrain::tensor_view(variances),
            dtrain::tensor_view(scales)};
  }
  void fill(int value) {
    means.assign(3, static_cast<float>(value));
    variances.assign(2, value);
    batches = value;
    scales.assign(4, dtrain::float8_e4m3(static_cast<float>(value)));
  }
  bool has(double floats, int others) const {
    return means == std::vector<float>(3, static_cast<float>(floats)) && variances == std::vector<double>(2, floats) &&
           batches == others && static_cast<float>(scales[3]) == static_cast<float>(others);
  }
  std::vector<float> means = std::vector<float>(3);
  std::vector<double> variances = std::vector<double>(2);
  std::vector<dtrain::float8_e4m3> scales = std::vector<dtrain::float8_e4m3>(4);
  std::int64_t batches = 0;
};

TEST_CASE("local steps leave each rank its own buffers, and averages of the weights average them") {
  run_well(2, [&](const Group& group) {
    WithBuffers model;
    LocalSgd hook{{.every = 2, .start_after = 2}};
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    for (int step = 0; step < 8; ++step) {
      const int own = 4 * step + 2 * group.rank();
      model.fill(own);
      ddp.backward([](Ready ready) { ready(0); });
      CHECK((step < 2 ? model.has(4 * step, 4 * step) : model.has(own, own)));
      const bool averages = hook.average(group);
      CHECK(averages == (step == 3 || step == 5 || step == 7));
      CHECK((!averages || model.has(4 * step + 1, 4 * step)));
    }
  });
}

TEST_CASE("buffers that steps do not broadcast stay those of each rank in an average, too") {
  run_well(2, [&](const Group& group) {
    WithBuffers model;
    LocalSgd hook{{.every = 1}};
    DistributedDataParallel ddp{model, group, {.broadcast_buffers = false}, std::ref(hook)};
    model.fill(2 * group.rank());
    ddp.backward([](Ready ready) { ready(0); });
    CHECK(hook.average(group));
    CHECK(model.has(2 * group.rank(), 2 * group.rank()));
  });
}

TEST_CASE("a rank that is late does not hold up the local steps of the others, also with buffers") {
  std::atomic<bool> is_done{false};
  run_well(2, [&](const Group& group) {
    WithBuffers model;
    LocalSgd hook{{.every = 6}};
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    const auto steps = [&](int count) {
      for (int i = 0; i < count; ++i) {
        ddp.backward([](Ready ready) { ready(0); });
        hook.average(group);
      }
    };
    steps(2);  // the plan of the buckets follows rank 0's first step
    CHECK((group.rank() != 0 || support::holds_soon([&] { return is_done.load(); })));
    steps(3);
    if (group.rank() == 1) is_done = true;
    steps(1);
  });
}

TEST_CASE("options that differ between ranks, and no steps between averages, are refused") {
  CHECK_ERROR(LocalSgd({.every = 0}), Errc::invalid_argument, "every = 0; it is 1 or more steps");
  expect_ends(2, {"hooks::LocalSgd every"}, [&](const Group& group) {
    Model model(sizes);
    LocalSgd hook{{.every = group.rank() == 0 ? 4U : 5U}};
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
  });
}

}  // namespace local_sgd_test
