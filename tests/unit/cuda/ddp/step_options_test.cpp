// ctest: TIMEOUT 240
// StepOptions on devices: a plain and a sharded step have the same norm, what is refused, and what the host waits for.

#include "dtrain/ddp/precision/device_loss_scaler.hpp"
#include "dtrain/ddp/precision/loss_scaler.hpp"
#include "dtrain/ddp/precision/master_weights.hpp"
#include "unit/cuda/ddp/sharded_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace cuda_step_options_test {

using namespace sharded_model;
using dtrain::DeviceLossScaler;
using dtrain::GradientNorm;
using dtrain::LossScaler;
using dtrain::ShardedOptimizer;
using dtrain::ShardedOptions;
using dtrain::StepOptions;
namespace optimizers = dtrain::optimizers;

constexpr dtrain::LossScalerOptions scale_of_48{.initial_scale = 48};

/// Scalers of one wrapper, of which a step has one at most.
struct Scalers {
  LossScaler on_host{scale_of_48};
  DeviceLossScaler on_device{scale_of_48};
};

constexpr int kinds = 8;

/// Each way to need a norm.
StepOptions options_of(int kind, Scalers& scalers) {
  const auto halve = [](dtrain::StepGradients& gradients) {
    gradients.scale(0.5);
    return true;
  };
  switch (kind) {
    case 0: return {.measure_norm = true};
    case 1: return {.clip_norm = 1e6};
    case 2: return {.clip_norm = 0.3};
    case 3: return {.scaler = &scalers.on_device};
    case 4: return {.clip_norm = 0.3, .scaler = &scalers.on_device};
    case 5: return {.clip_norm = 0.1, .scaler = &scalers.on_host, .inspect = halve};
    case 6: return {.inspect = halve};
    default: return {.inspect = [](dtrain::StepGradients&) { return false; }};
  }
}

/// The squares of these gradients, and their sums, are exact in f64, so that every order of addition gives the same.
void expect_the_norms_of_plain_steps(int ranks, const ShardedOptions& stage) {
  run_well<NcclPolicy>(
      ranks,
      [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
        Model<float> model;
        Model<float> other;
        const dtrain::DdpOptions buckets{.bucket_bytes = 3000};
        DistributedDataParallel ddp{model, group, buckets};
        DistributedDataParallel plain{other, group, buckets};
        ShardedOptimizer optimizer{ddp, optimizers::Momentum{.rate = 0.1F}, stage};
        Scalers scalers;
        Scalers of_plain;
        for (int step = 0; step < 2 * kinds; ++step) {
          CAPTURE(step);
          const int kind = step % kinds;
          const int gradients = step == kinds + 4 || step == kinds + 5 ? overflow_on(ranks - 1, step - kinds) : step;
          const bool updates =
              ddp.backward(model.backward(gradients, group.rank()), optimizer, options_of(kind, scalers));
          CHECK(updates == plain.backward(other.backward(gradients, group.rank()), options_of(kind, of_plain)));
          const GradientNorm norm = ddp.gradient_norm();
          const GradientNorm expected = plain.gradient_norm();
          CHECK(norm.finite == (gradients == step));
          CHECK(expected.finite == norm.finite);
          if (norm.finite) {
            CHECK(norm.norm == expected.norm);
            CHECK(norm.before_clipping == expected.before_clipping);
            CHECK((norm.norm < norm.before_clipping) == (kind == 2 || kind == 4 || kind == 5));
          }
          for (const float* const found_inf : {ddp.found_inf(), plain.found_inf()})
            CHECK(support::on_host<float>(reinterpret_cast<const std::byte*>(found_inf), 1)[0] ==
                  (norm.finite ? 0 : 1));
        }
        ddp.backward(model.backward(1, group.rank()), optimizer);
        CHECK_ERROR(ddp.gradient_norm(), Errc::invalid_argument, "the last step did not measure it");
        group.barrier();
      },
      100s);
}

TEST_CASE("the norm and found_inf after a sharded step are those of a plain step with the same options") {
  for (const int ranks : {1, 2}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    CAPTURE(ranks);
    expect_the_norms_of_plain_steps(ranks, {});
    expect_the_norms_of_plain_steps(ranks, {.early_update = true});
    expect_the_norms_of_plain_steps(ranks, {.stage = 2});
  }
}

TEST_CASE("after a capture, a step whose inspection returns false changes no weight, state or number of updates") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const optimizers::AdamW rule{.rate = 0.01F};
  const auto refusing = [](int step) {
    return StepOptions{.inspect = [step](dtrain::StepGradients&) { return step != 1; }};
  };
  const std::vector<Weights<float>> expected =
      weights_on_host<float>(1, rule, ReduceOp::average, 4, [&](int, int step) { return refusing(step); });
  REQUIRE(equal_bits(expected[0], expected[1]));
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    for (const ShardedOptions& stage : {ShardedOptions{}, ShardedOptions{.stage = 2}}) {
      Model<float> model;
      DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
      ShardedOptimizer optimizer{ddp, rule, stage};
      const support::Graph graph = captured_step(model, ddp, optimizer);
      for (int step = 0; step < 4; ++step) {
        CAPTURE(step);
        CHECK(ddp.backward(model.backward(step, 0), optimizer, refusing(step)) == (step != 1));
        CHECK(equal_bits(model.weights(), expected[static_cast<std::size_t>(step)]));
      }
      CHECK(optimizer.steps() == 3);
    }
  });
}

/// A rule of a program that does not say what it reads.
struct OwnRule {
  void enqueue(const BufferView&, const BufferView&, std::span<const BufferView>, const dtrain::DeviceStepInfo&,
               StreamRef) const {}
};

TEST_CASE("options that no step on a device has are refused before it opens, and the next step works") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{}};
    ShardedOptimizer own{ddp, OwnRule{}};
    HostModel<float> host_model;
    dtrain::MasterWeights master{host_model};
    Scalers scalers;
    const auto no_pass = [](Ready) { FAIL("the step was opened"); };
    StepOptions both = options_of(6, scalers);
    both.scaler = &scalers.on_device;
    constexpr const char* both_sentence =
        "backward() has a DeviceLossScaler, for which the host waits in no step, and a function that inspects the "
        "gradients, for which it does; give a LossScaler";
    CHECK_ERROR(ddp.backward(no_pass, both), Errc::invalid_argument, both_sentence);
    CHECK_ERROR(ddp.backward(no_pass, optimizer, both), Errc::invalid_argument, both_sentence);
    CHECK_ERROR(ddp.backward(no_pass, {.master = &master}), Errc::invalid_argument,
                "backward() has MasterWeights, which are for models in host memory");
    CHECK_ERROR(ddp.backward(no_pass, optimizer, {.master = &master}), Errc::invalid_argument,
                "backward() has MasterWeights, but a ShardedOptimizer keeps f32 weights");
    CHECK_ERROR(ddp.backward(no_pass, own, {.scaler = &scalers.on_device}), Errc::invalid_argument,
                "backward() has a DeviceLossScaler, which needs a rule whose kernels change nothing where "
                "*info.found_inf is 1, and that says so by 'static constexpr bool reads_found_inf = true;'");
    CHECK(ddp.backward(model.backward(1, 0), own, {.scaler = &scalers.on_host}));
    CHECK(ddp.backward(model.backward(1, 0), optimizer, {.scaler = &scalers.on_device}));
    CHECK(ddp.backward(model.backward(1, 0), {.scaler = &scalers.on_device}));
    model.block();
    CHECK(own.steps() == 1);
    CHECK(optimizer.steps() == 1);
  });
}

TEST_CASE("a scaler on a device is refused for a model in host memory, with an optimizer and without") {
  if (!support::enough_devices(1)) return dtrain_test::skip("a scaler takes device memory");
  run_well<HostPolicy>(1, [&](const dtrain::ProcessGroup<HostPolicy>& group) {
    HostModel<float> model;
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{}};
    DeviceLossScaler scaler;
    const StepOptions scaled{.clip_norm = 1, .scaler = &scaler};
    const auto no_pass = [](Ready) { FAIL("the step was opened"); };
    constexpr const char* sentence =
        "backward() has a DeviceLossScaler, which is for models in device memory; in host memory give a LossScaler";
    CHECK_ERROR(ddp.backward(no_pass, scaled), Errc::invalid_argument, sentence);
    CHECK_ERROR(ddp.backward(no_pass, optimizer, scaled), Errc::invalid_argument, sentence);
    CHECK(ddp.backward(model.backward(1, 0), optimizer));
  });
}

template <class P, class M>
void expect_no_scaling_after_a_sharded_step() {
  run_well<P>(1, [&](const dtrain::ProcessGroup<P>& group) {
    M model;
    DistributedDataParallel ddp{model, group};
    ShardedOptimizer optimizer{ddp, optimizers::Sgd{}};
    CHECK(ddp.backward(model.backward(1, 0), optimizer, {.clip_norm = 1}));
    const double norm = ddp.gradient_norm().norm;
    constexpr const char* sentence =
        "the gradients were to be scaled or clipped after a step with a ShardedOptimizer or MasterWeights, which has "
        "used "
        "them; give that step StepOptions::clip_norm";
    CHECK_ERROR(ddp.clip_gradients(0.5), Errc::invalid_argument, sentence);
    CHECK_ERROR(ddp.scale_gradients(2), Errc::invalid_argument, sentence);
    CHECK(ddp.gradient_norm().norm == norm);
    CHECK(ddp.backward(model.backward(1, 0), {.measure_norm = true}));
    ddp.clip_gradients(0.5);
    CHECK(std::abs(ddp.gradient_norm().norm - 0.5) < 1e-5);
  });
}

TEST_CASE("after a sharded step gradients are not scaled: the optimizer has used them") {
  expect_no_scaling_after_a_sharded_step<HostPolicy, HostModel<float>>();
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  expect_no_scaling_after_a_sharded_step<NcclPolicy, Model<float>>();
}

#if DTRAIN_EMULATED_CUDA

/// Whether the step returns while the model's first stream cannot run.
bool returns_at_once(const Model<float>& model, const std::function<void()>& step) {
  support::Gate gate;
  std::atomic<bool> has_returned{false};
  bool in_time = false;
  support::enqueue_on_host(model.stream(0), [&] { gate.pass(); });
  std::thread opener([&] {
    in_time = holds_soon([&] { return has_returned.load(); }, 10s);
    gate.open();
  });
  step();
  has_returned = true;
  opener.join();
  model.block();
  return in_time;
}

TEST_CASE("after a captured step, the host waits in no step whose options a kernel decides, plain or sharded") {
  const EmulatedDevices emulated(1);
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reorder_gradients = false}};
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{}};
    Scalers scalers;
    const support::Graph sharded = captured_step(model, ddp, optimizer, {.clip_norm = 1});
    const support::Graph plain = support::captured(
        model.stream(0),
        [&] {
          ddp.backward(pass_of(model), {.clip_norm = 1});
          static thread_local dtrain::stream::cuda::Event ended;
          model.stream(1).record(ended);
          model.stream(0).wait(ended);
        },
        cudaStreamCaptureModeThreadLocal);
    for (const support::Graph* const graph : {&sharded, &plain}) {
      for (int kind = 0; kind <= 4; ++kind) {
        CAPTURE(kind);
        model.block();
        model.set_gradients(1, 0);
        graph->launch(model.stream(0));
        CHECK(returns_at_once(model, [&] { ddp.backward(pass_of(model), options_of(kind, scalers)); }));
        const GradientNorm norm = ddp.gradient_norm();
        CHECK(norm.finite);
        CHECK(returns_at_once(model, [&] { ddp.backward(pass_of(model), optimizer, options_of(kind, scalers)); }));
        CHECK(ddp.gradient_norm().norm == norm.norm);
      }
    }
    model.block();
  });
}

TEST_CASE("a step whose function scales nothing launches no more than one that measures") {
  const EmulatedDevices emulated(1);
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.reorder_gradients = false}};
    const auto launches_of = [&](const StepOptions& options) {
      model.block();
      const int before = emulation::kernel_launches();
      ddp.backward(pass_of(model), options);
      model.block();
      return emulation::kernel_launches() - before;
    };
    model.set_gradients(1, 0);
    launches_of({});
    const int measured = launches_of({.measure_norm = true});
    CHECK(launches_of({.inspect = [](dtrain::StepGradients&) { return true; }}) == measured);
    CHECK(launches_of({.inspect = [](dtrain::StepGradients&) { return false; }}) == measured);
    CHECK(launches_of({.clip_norm = 1e6}) > measured);
  });
}

#endif

}  // namespace cuda_step_options_test
