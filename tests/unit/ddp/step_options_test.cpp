#include "dtrain/ddp/step_options.hpp"

#include "dtrain/ddp/precision/loss_scaler.hpp"
#include "dtrain/ddp/precision/master_weights.hpp"
#include "unit/ddp/prelude.hpp"

using dtrain::GradientNorm;
using dtrain::LossScaler;
using dtrain::StepGradients;
using dtrain::StepOptions;
using dtrain::ddp::decide_step;
using dtrain::ddp::StepDecision;

namespace {

constexpr GradientNorm eight{8, true, 8};
constexpr GradientNorm infinite{std::numeric_limits<double>::infinity(), false,
                                std::numeric_limits<double>::infinity()};

struct OneParameter {
  std::vector<Parameter> parameters() {
    return {{"p", tensor_view(value.data(), {4}), tensor_view(gradient.data(), {4})}};
  }
  std::vector<float> value = std::vector<float>(4);
  std::vector<float> gradient = std::vector<float>(4);
};

}  // namespace

TEST_CASE("a step measures its norm for each option that needs it, and for no other") {
  LossScaler scaler;
  CHECK_FALSE(StepOptions{}.needs_norm());
  CHECK(StepOptions{.clip_norm = 1}.needs_norm());
  CHECK(StepOptions{.scaler = &scaler}.needs_norm());
  CHECK(StepOptions{.inspect = [](StepGradients&) { return true; }}.needs_norm());
  CHECK(StepOptions{.measure_norm = true}.needs_norm());
  CHECK_FALSE(StepOptions{.scaler = nullptr}.needs_norm());
  CHECK_FALSE(StepOptions{.clip_norm = 1, .measure_norm = true}.needs_host());
}

TEST_CASE("the scaler divides, then the function looks and scales, then the norm is clipped: one factor") {
  LossScaler scaler({.initial_scale = 4});
  double seen = 0;
  StepOptions options{.clip_norm = 0.5, .scaler = &scaler};
  options.inspect = [&](StepGradients& gradients) {
    seen = gradients.gradient_norm().norm;
    gradients.scale(2);
    return true;
  };
  StepDecision decision = decide_step(options, eight);
  decision.clip(options.clip_norm);
  CHECK(seen == 2);
  CHECK(decision.updates);
  CHECK(decision.norm.before_clipping == 4);
  CHECK(decision.norm.norm == doctest::Approx(0.5));
  CHECK(decision.factor == doctest::Approx(0.0625));
}

TEST_CASE("a norm below the largest one, and one that is not finite, is not clipped") {
  StepDecision decision = decide_step({.clip_norm = 100}, eight);
  decision.clip(100);
  CHECK(decision.factor == 1);
  CHECK(decision.norm.norm == 8);
  StepDecision not_finite = decide_step({.clip_norm = 1}, infinite);
  not_finite.clip(1);
  CHECK(not_finite.updates);
  CHECK(not_finite.factor == 1);
}

TEST_CASE("gradients that are not finite let the scaler back off, and nothing else happens") {
  LossScaler scaler({.initial_scale = 4});
  bool is_called = false;
  StepOptions options{.clip_norm = 1, .scaler = &scaler};
  options.inspect = [&](StepGradients&) { return is_called = true; };
  const StepDecision decision = decide_step(options, infinite);
  CHECK_FALSE(decision.updates);
  CHECK_FALSE(is_called);
  CHECK(decision.factor == 1);
  CHECK(scaler.scale() == 2);
}

TEST_CASE("a function that returns false ends the step with the gradients as they were reduced") {
  LossScaler scaler({.initial_scale = 4, .growth_interval = 1});
  const StepDecision decision =
      decide_step({.scaler = &scaler, .inspect = [](StepGradients&) { return false; }}, eight);
  CHECK_FALSE(decision.updates);
  CHECK(decision.factor == 1);
  CHECK(decision.norm.norm == 8);
  CHECK(scaler.scale() == 8);  // the gradients were finite
}

TEST_CASE("options that a step cannot have are an Error that says what to do") {
  OneParameter model;
  dtrain::MasterWeights master{model};
  const auto check = [](const StepOptions& options, bool on_device, bool is_sharded, const std::string& part) {
    CHECK_ERROR(require_valid(options, on_device, is_sharded, "backward()"), Errc::invalid_argument, part);
  };
  check({.clip_norm = -1}, false, false,
        "backward() has a clip_norm of -1; give a positive norm, or 0 for no clipping");
  check({.clip_norm = std::numeric_limits<double>::quiet_NaN()}, false, false, "clip_norm of nan");
  check({.master = &master}, false, true, "a ShardedOptimizer keeps f32 weights of 16-bit models itself");
  check({.master = &master}, true, false, "which are for models in host memory");
  auto* const of_device = reinterpret_cast<dtrain::ddp::DeviceLossScaler*>(&master);  // only its address is used
  check({.scaler = of_device}, false, false, "in host memory give a LossScaler");
  check({.scaler = of_device, .inspect = [](StepGradients&) { return true; }}, true, false, "give a LossScaler");
  CHECK_NOTHROW(require_valid({.clip_norm = 1, .scaler = of_device}, true, true, "backward()"));
}
