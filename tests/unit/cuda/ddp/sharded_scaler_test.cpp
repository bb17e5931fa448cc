// ctest: TIMEOUT 240
// DeviceLossScaler in a step with a ShardedOptimizer on devices: the bits of the host's LossScaler, no update where a
// gradient of any rank is not finite, and no wait.

#include "dtrain/ddp/checkpoint/checkpoint.hpp"
#include "dtrain/ddp/precision/device_loss_scaler.hpp"
#include "dtrain/ddp/precision/loss_scaler.hpp"
#include "dtrain/ddp/sharded/sharded_checkpoint.hpp"
#include "support/temporary_directory.hpp"
#include "unit/cuda/ddp/sharded_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace cuda_sharded_scaler_test {

using namespace sharded_model;
using dtrain::DeviceLossScaler;
using dtrain::LossScaler;
using dtrain::ShardedOptimizer;
using dtrain::ShardedOptions;
using dtrain::StepOptions;
namespace optimizers = dtrain::optimizers;

constexpr dtrain::LossScalerOptions options{.initial_scale = 48, .growth_factor = 3, .growth_interval = 2};
constexpr int steps = 10;
constexpr int updates = 6;

constexpr bool overflows(int step) {
  return step == 0 || step == 3 || step == 4 || step == 7;
}

/// The step's gradients, of which some overflow on the first rank or on the last.
int gradients_of(int step, int ranks) {
  return overflows(step) ? overflow_on(step % 2 == 0 ? 0 : ranks - 1, step) : step;
}

template <class T, class Policy>
using ModelOf = std::conditional_t<std::is_same_v<Policy, HostPolicy>, HostModel<T>, Model<T>>;
template <class Policy>
using ScalerOf = std::conditional_t<std::is_same_v<Policy, HostPolicy>, LossScaler, DeviceLossScaler>;

/// Blocking.
template <class T>
const Weights<T>& weights_of(const HostModel<T>& model) {
  return model.values;
}
template <class T>
Weights<T> weights_of(const Model<T>& model) {
  return model.weights();
}
float scale_of(const LossScaler& scaler) {
  return scaler.scale();
}
float scale_of(const DeviceLossScaler& scaler) {
  return support::on_host<float>(reinterpret_cast<const std::byte*>(scaler.scale()), 1)[0];
}

/// What a training has after a step.
template <class T>
struct Seen {
  Weights<T> weights;
  float scale = 0;
  std::uint64_t updates = 0;

  bool operator==(const Seen& other) const {
    return equal_bits(weights, other.weights) && scale == other.scale && updates == other.updates;
  }
};

template <class T, class Policy>
Seen<T> seen(const ModelOf<T, Policy>& model, const ScalerOf<Policy>& scaler, const auto& optimizer) {
  Weights<T> weights = weights_of(model);
  return {std::move(weights), scale_of(scaler), optimizer.steps()};
}

/// Blocking, after weights_of(): what the wrapper says of the step, on the host and on the device.
template <class Policy>
void expect_finite(const auto& ddp, bool is_finite) {
  CHECK(ddp.gradient_norm().finite == is_finite);
  if constexpr (!std::is_same_v<Policy, HostPolicy>) {
    CHECK(support::on_host<float>(reinterpret_cast<const std::byte*>(ddp.found_inf()), 1)[0] == (is_finite ? 0 : 1));
  }
}

/// A training; with a path, of two: the first saves before step `saved`, the second, which has none, loads.
struct Run {
  double max_norm = 0;  ///< 0: does not clip
  std::string path = {};
  int begin = 0;
  int saved = -1;
};

/// Trains, and checks each step on each rank if there is what to expect. @returns what rank 0 has seen
template <class T, class Policy, class Rule>
std::vector<Seen<T>> trained(int ranks, const Rule& rule, const ShardedOptions& stage, const Run& run,
                             const std::vector<Seen<T>>& expected = {}) {
  std::vector<Seen<T>> all;
  const auto train = [&](const dtrain::ProcessGroup<Policy>& group) {
    ModelOf<T, Policy> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reduce_op = ReduceOp::sum}};
    ShardedOptimizer optimizer{ddp, rule, stage};
    ScalerOf<Policy> scaler(options);
    auto state = dtrain::parameter_values(ddp.parameters());
    for (const auto& tensor : scaler.state())
      state.push_back(tensor);
    if (run.begin > 0) CHECK(dtrain::load_checkpoint(group, run.path, state, optimizer));
    for (int step = run.begin; step < steps; ++step) {
      CAPTURE(step);
      if (step == run.saved) dtrain::save_checkpoint(group, run.path, state, optimizer);
      const auto pass = model.backward(gradients_of(step, ranks), group.rank());
      constexpr bool host_decides = std::is_same_v<Policy, HostPolicy>;
      const bool has_updated = ddp.backward(pass, optimizer, {.clip_norm = run.max_norm, .scaler = &scaler});
      CHECK(has_updated == !(host_decides && overflows(step)));
      const Seen<T> now = seen<T, Policy>(model, scaler, optimizer);
      if (!expected.empty()) CHECK(now == expected[static_cast<std::size_t>(step)]);
      expect_finite<Policy>(ddp, !overflows(step));
      if (group.rank() == 0) all.push_back(now);
    }
    group.barrier();
  };
  support::run_well<Policy>(ranks, train, 100s);
  return all;
}

/// The same on the host, by a function that inspects the gradients, divides and clips.
template <class T, class Rule>
std::vector<Seen<T>> trained_on_host(int ranks, const Rule& rule, double max_norm) {
  std::vector<Seen<T>> all;
  support::run_well<HostPolicy>(ranks, [&](const dtrain::ProcessGroup<HostPolicy>& group) {
    HostModel<T> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reduce_op = ReduceOp::sum}};
    ShardedOptimizer optimizer{ddp, rule};
    LossScaler scaler(options);
    for (int step = 0; step < steps; ++step) {
      const auto inspect = [&](dtrain::StepGradients& gradients) {
        const bool is_finite = gradients.gradient_norm().finite;
        const double factor = scaler.next_factor(is_finite);
        if (is_finite) gradients.scale(factor);
        if (is_finite && max_norm != 0)
          gradients.scale(dtrain::ddp::clipping_factor(gradients.gradient_norm(), max_norm));
        return is_finite;
      };
      ddp.backward(model.backward(gradients_of(step, ranks), group.rank()), optimizer, {.inspect = inspect});
      if (group.rank() == 0) all.push_back(seen<T, HostPolicy>(model, scaler, optimizer));
    }
  });
  return all;
}

template <class T, class Rule>
void expect_the_hosts(int ranks, const Rule& rule, double max_norm = 0) {
  CAPTURE(ranks);
  CAPTURE(max_norm);
  const std::vector<Seen<T>> expected = trained_on_host<T>(ranks, rule, max_norm);
  REQUIRE(expected.back().updates == updates);
  CHECK(expected[0].scale == 24);
  CHECK(equal_bits(expected[3].weights, expected[2].weights));
  CHECK_FALSE(equal_bits(expected[5].weights, expected[4].weights));
  const Run run{.max_norm = max_norm};
  CHECK(trained<T, HostPolicy>(ranks, rule, {}, run) == expected);
  trained<T, NcclPolicy>(ranks, rule, {}, run, expected);
  trained<T, NcclPolicy>(ranks, rule, {.early_update = true}, run, expected);
  trained<T, NcclPolicy>(ranks, rule, {.stage = 2}, run, expected);
}

TEST_CASE("a scaler on devices gives the host's weights, scales and numbers of updates, with overflows on one rank") {
  for (const int ranks : {1, 2, 3}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    expect_the_hosts<float>(ranks, optimizers::AdamW{.rate = 0.01F});
    expect_the_hosts<bfloat16>(ranks, optimizers::Adam{.rate = 0.01F});
  }
  if (!support::enough_devices(2)) return;
  expect_the_hosts<float16>(2, optimizers::Momentum{.rate = 2});
  expect_the_hosts<float>(2, optimizers::Sgd{.rate = 3});
}

// The squares of the gradients, and their sums, are exact in f64, so that every order of addition gives the same.
TEST_CASE("clipping behind a scaler on devices has the bits of the host's") {
  for (const int ranks : {1, 2, 3}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    expect_the_hosts<float>(ranks, optimizers::Momentum{.rate = 1}, 0.3);
    expect_the_hosts<bfloat16>(ranks, optimizers::Momentum{.rate = 1}, 0.3);
  }
}

TEST_CASE("a checkpoint after a step that was skipped has the number of updates, on devices and on the host") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const support::TemporaryDirectory folder;
  const std::string path = folder.path + "/checkpoint";
  const optimizers::AdamW rule{.rate = 0.01F};
  constexpr int saved = 4;
  static_assert(overflows(saved - 1));
  const Run first{.path = path, .saved = saved};
  const Run second{.path = path, .begin = saved};
  const std::vector<Seen<float>> expected = trained_on_host<float>(2, rule, 0);
  trained<float, NcclPolicy>(2, rule, {}, first, expected);
  trained<float, NcclPolicy>(2, rule, {.stage = 2}, second, expected);
  trained<float, HostPolicy>(2, rule, {}, second, expected);
  trained<float, HostPolicy>(2, rule, {}, first, expected);
  trained<float, NcclPolicy>(2, rule, {}, second, expected);
}

TEST_CASE("a captured step skips its update in the replays that overflow") {
  for (const int warm_up : {0, 2}) {
    for (const double max_norm : {0.0, 0.3}) {
      if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
      CAPTURE(warm_up);
      CAPTURE(max_norm);
      const optimizers::AdamW rule{.rate = 0.01F};
      const std::vector<Seen<float>> expected = trained_on_host<float>(1, rule, max_norm);
      run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
        Model<float> model;
        DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
        ShardedOptimizer optimizer{ddp, rule, {.stage = 2}};
        DeviceLossScaler scaler(options);
        int step = 0;
        const StepOptions scaled{.clip_norm = max_norm, .scaler = &scaler};
        const auto check_step = [&] {
          CAPTURE(step);
          CHECK(seen<float, NcclPolicy>(model, scaler, optimizer) == expected[static_cast<std::size_t>(step)]);
          expect_finite<NcclPolicy>(ddp, !overflows(step++));
        };
        const auto eager = [&] {
          CHECK(ddp.backward(model.backward(gradients_of(step, 1), 0), optimizer, scaled));
          check_step();
        };
        while (step < warm_up)
          eager();
        const support::Graph graph = captured_step(model, ddp, optimizer, scaled);
        while (step < steps - 2) {
          model.block();
          model.set_gradients(gradients_of(step, 1), 0);
          graph.launch(model.stream(0));
          check_step();
        }
        eager();
        eager();
      });
    }
  }
}

TEST_CASE("behind an overflow, steps without a scaler update and are counted") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const auto train = [&]<class Policy>(const dtrain::ProcessGroup<Policy>& group, ScalerOf<Policy>& scaler) {
    const optimizers::AdamW rule{.rate = 0.01F};
    ModelOf<float, Policy> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}};
    ShardedOptimizer optimizer{ddp, rule};
    std::vector<Seen<float>> all;
    for (int step = 0; step < 5; ++step) {
      const auto pass = model.backward(step == 0 || step == 3 ? overflow_on(0, step) : step, group.rank());
      if (step == 0 || step == 3)
        ddp.backward(pass, optimizer, {.scaler = &scaler});
      else if (step == 1)
        ddp.backward(pass, optimizer);
      else if (step == 2)
        ddp.backward(pass, optimizer, {.inspect = [](dtrain::StepGradients&) { return true; }});
      else
        ddp.backward(pass, optimizer, {.clip_norm = 1e6});
      all.push_back(seen<float, Policy>(model, scaler, optimizer));
    }
    group.barrier();
    return all;
  };
  std::vector<Seen<float>> expected;
  run_well<HostPolicy>(2, [&](const dtrain::ProcessGroup<HostPolicy>& group) {
    LossScaler scaler(options);
    const auto all = train(group, scaler);
    if (group.rank() == 0) expected = all;
  });
  CHECK(expected[4].updates == 3);
  run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    DeviceLossScaler scaler(options);
    CHECK(train(group, scaler) == expected);
  });
}

/// A rule that a program writes, by the kernel of another rule.
struct OwnRule {
  static constexpr bool reads_found_inf = true;
  void enqueue(const BufferView& weights, const BufferView& gradients, std::span<const BufferView>,
               const dtrain::DeviceStepInfo& info, StreamRef stream) const {
    CHECK(info.found_inf != nullptr);
    CHECK(info.live != nullptr);
    CHECK(info.step == 0);
    dtrain::DeviceStepInfo inner = info;
    inner.live = nullptr;
    dtrain::ddp::enqueue_rule(optimizers::Sgd{.rate = 0.5F}, weights, gradients, {}, inner, stream);
  }
  bool load_kernels(StreamRef stream) const { return dtrain::ddp::load_rule(optimizers::Sgd{}, stream); }
};
struct OtherRule {
  void enqueue(const BufferView&, const BufferView&, std::span<const BufferView>, const dtrain::DeviceStepInfo&,
               StreamRef) const {}
};

TEST_CASE("a program's own rule reads where no update is to be made") {
  static_assert(dtrain::ddp::ReadsFoundInf<OwnRule>);
  static_assert(dtrain::ddp::DeviceRule<OtherRule>);
  static_assert(!dtrain::ddp::ReadsFoundInf<OtherRule>);
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const std::vector<Seen<float>> expected = trained_on_host<float>(2, optimizers::Sgd{.rate = 0.5F}, 0);
  trained<float, NcclPolicy>(2, OwnRule{}, {}, {}, expected);
}

TEST_CASE("work between the last ready() and finish() reads the scale of its own step") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{}};
    DeviceLossScaler scaler(options);
    const PinnedBuffer read(sizeof(float));
    support::Gate gate;
    model.set_gradients(overflow_on(0, 0), 0);
    Step step = ddp.begin(optimizer, {.scaler = &scaler});
    pass_of(model)(step.ready());
    support::enqueue_on_host(model.stream(0), [&] { gate.pass(); });
    check(cudaMemcpyAsync(read.data(), scaler.scale(), sizeof(float), cudaMemcpyDeviceToHost, model.stream(0).native()),
          "cudaMemcpyAsync");
    CHECK(step.finish());
    std::this_thread::sleep_for(50ms);  // time for a kernel that does not wait to change the scale
    gate.open();
    model.block();
    CHECK(*reinterpret_cast<const float*>(read.data()) == options.initial_scale);
    CHECK(scale_of(scaler) == options.initial_scale / 2);
  });
}

TEST_CASE("a scaler on another device than the optimizer is refused in a sentence") {
  if (!support::enough_devices(2)) return dtrain_test::skip("a scaler elsewhere needs another device");
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{}};
    const int own = current_device();
    check(cudaSetDevice(1 - own), "cudaSetDevice");
    DeviceLossScaler elsewhere;
    check(cudaSetDevice(own), "cudaSetDevice");
    CHECK_ERROR(ddp.backward(model.backward(0, 0), optimizer, {.scaler = &elsewhere}), Errc::invalid_argument,
                "DeviceLossScaler has its scale on cuda:1, and the gradients are on cuda:0");
    DeviceLossScaler here(options);
    ddp.backward(model.backward(1, 0), optimizer, {.scaler = &here});
    model.block();
    CHECK(optimizer.steps() == 1);
  });
}

TEST_CASE("a scaler whose address is null is none") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, OtherRule{}};
    DeviceLossScaler* const none = nullptr;
    CHECK(ddp.backward(model.backward(1, 0), optimizer, {.scaler = none}));
    model.block();
    CHECK_ERROR(ddp.gradient_norm(), Errc::invalid_argument, "the last step did not measure it");
  });
}

TEST_CASE("steps with a scaler follow each other without a wait of the program") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const optimizers::AdamW rule{.rate = 0.01F};
  Seen<float> expected;
  run_well<HostPolicy>(1, [&](const dtrain::ProcessGroup<HostPolicy>& group) {
    HostModel<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}};
    ShardedOptimizer optimizer{ddp, rule};
    LossScaler scaler(options);
    for (int step = 0; step < steps; ++step)
      ddp.backward(model.backward(1, 0), optimizer, {.scaler = &scaler});
    expected = seen<float, HostPolicy>(model, scaler, optimizer);
  });
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}};
    ShardedOptimizer optimizer{ddp, rule};
    DeviceLossScaler scaler(options);
    model.set_gradients(1, 0);
    for (int step = 0; step < steps; ++step) {
      ddp.backward(pass_of(model), optimizer, {.scaler = &scaler});
      CHECK(optimizer.steps() <= static_cast<std::uint64_t>(steps));
    }
    CHECK(seen<float, NcclPolicy>(model, scaler, optimizer) == expected);
  });
}

#if DTRAIN_EMULATED_CUDA

TEST_CASE("a step with a scaler waits for nothing, with clipping too") {
  constexpr int ranks = 2;
  const EmulatedDevices emulated(ranks);
  std::barrier together(ranks);
  run_well<NcclPolicy>(ranks, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{}};
    DeviceLossScaler scaler(options);
    for (const int step : {0, 1, 2, 3, 4}) {  // the first step connects the ranks
      model.block();
      model.set_gradients(gradients_of(step, ranks), group.rank());
      check_waits(together, step > 0, [&] {
        ddp.backward(pass_of(model), optimizer, {.clip_norm = step % 2 == 0 ? 0 : 1.0, .scaler = &scaler});
      });
    }
    model.block();
    CHECK(optimizer.steps() == 2);
    group.barrier();
  });
}

#endif

}  // namespace cuda_sharded_scaler_test
