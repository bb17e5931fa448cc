// The loss scaler's sequence of scales, its checkpoint, and f32 master weights of 16-bit models.

#include "unit/public_interface/prelude.hpp"

using dtrain::LossScaler;
using dtrain::MasterWeights;

namespace {

/// What a step decides, whose gradients have the norm 1 or an overflow.
void step(LossScaler& scaler, bool overflows) {
  const double divisor = static_cast<double>(scaler.scale());
  const dtrain::ddp::StepDecision decision = dtrain::ddp::decide_step({.scaler = &scaler}, {1, !overflows});
  CHECK(decision.updates == !overflows);
  CHECK(decision.factor == (overflows ? 1 : 1 / divisor));
}

template <class Element>
struct HalfModel {
  std::vector<Element> values = std::vector<Element>(300, Element(1.0F));
  std::vector<Element> bias = std::vector<Element>(3, Element(0.1F));
  std::vector<Element> gradients = std::vector<Element>(300);
  std::vector<Element> bias_gradients = std::vector<Element>(3);
  std::vector<dtrain::Parameter> list{
      {"weight", dtrain::tensor_view(values.data(), {3, 100}), dtrain::tensor_view(gradients.data(), {3, 100})},
      {"bias", dtrain::tensor_view(bias), dtrain::tensor_view(bias_gradients)}};
  const std::vector<dtrain::Parameter>& parameters() const { return list; }
};

}  // namespace

// Recorded from torch.amp.GradScaler("cpu", growth_interval=4) of PyTorch 2.15.0: get_scale() after each update().
TEST_CASE("the scales are those that GradScaler had for the same overflows") {
  constexpr std::string_view overflows = ".x..xx.......x...........x.xx....................";
  const std::vector<float> recorded{65536, 32768, 32768, 32768, 16384, 8192,  8192,  8192,  8192,  16384,
                                    16384, 16384, 16384, 8192,  8192,  8192,  8192,  16384, 16384, 16384,
                                    16384, 32768, 32768, 32768, 32768, 16384, 16384, 8192,  4096,  4096,
                                    4096,  4096,  8192,  8192,  8192,  8192,  16384, 16384, 16384, 16384,
                                    32768, 32768, 32768, 32768, 65536, 65536, 65536, 65536, 131072};
  LossScaler scaler({.growth_interval = 4});
  std::vector<float> scales;
  for (const char mark : overflows) {
    step(scaler, mark == 'x');
    scales.push_back(scaler.scale());
  }
  CHECK(scales == recorded);
}

// Recorded likewise with GradScaler's own constants: 2000 steps, one overflow, 2000 steps, 2000 steps.
TEST_CASE("the constants are GradScaler's") {
  LossScaler scaler;
  const auto after = [&](int steps, bool overflows) {
    for (int i = 0; i < steps; ++i)
      step(scaler, overflows);
    return scaler.scale();
  };
  CHECK(scaler.scale() == 65536);
  CHECK(after(1999, false) == 65536);
  CHECK(after(1, false) == 131072);
  CHECK(after(1, true) == 65536);
  CHECK(after(1999, false) == 65536);
  CHECK(after(1, false) == 131072);
  CHECK(after(2000, false) == 262144);
}

// GradScaler stays at 2^127 too.
TEST_CASE("the scale stays finite and positive") {
  LossScaler scaler({.initial_scale = 0x1p100F, .growth_interval = 1});
  for (int i = 0; i < 70; ++i)
    step(scaler, false);
  CHECK(scaler.scale() == 0x1p127F);
  for (int i = 0; i < 400; ++i)
    step(scaler, true);
  CHECK(scaler.scale() == std::numeric_limits<float>::denorm_min());
}

TEST_CASE("options outside their ranges and a damaged scale are refused") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const dtrain::LossScalerOptions& bad :
       {dtrain::LossScalerOptions{.initial_scale = 0}, dtrain::LossScalerOptions{.initial_scale = nan},
        dtrain::LossScalerOptions{.growth_factor = 1}, dtrain::LossScalerOptions{.backoff_factor = 1},
        dtrain::LossScalerOptions{.backoff_factor = 0}, dtrain::LossScalerOptions{.growth_interval = 0}}) {
    CHECK_THROWS_AS(LossScaler{bad}, dtrain::Error);
  }
  LossScaler scaler;
  scaler.state()[0].value.as<float>()[0] = nan;
  CHECK_THROWS_WITH_AS(step(scaler, false), doctest::Contains("a loss scale is nan"), dtrain::Error);
}

TEST_CASE("a checkpoint keeps the scale and the steps since it changed") {
  const support::TemporaryDirectory folder;
  run_well(2, [&](const Group& group) {
    LossScaler scaler({.growth_interval = 4});
    step(scaler, true);
    for (int i = 0; i < 3; ++i)
      step(scaler, false);
    dtrain::save_checkpoint(group, folder.path + "/state", scaler.state());
    LossScaler restored({.growth_interval = 4});
    CHECK(dtrain::load_checkpoint(group, folder.path + "/state", restored.state()));
    CHECK(restored.scale() == 32768);
    step(restored, false);
    CHECK(restored.scale() == 65536);
  });
}

TEST_CASE("an overflow on one rank makes all ranks skip the step and halve the scale") {
  run_well(3, [&](const Group& group) {
    HalfModel<float16> model;
    DistributedDataParallel ddp{model, group};
    LossScaler scaler;
    MasterWeights master{model};
    bool overflows = true;
    const auto pass = [&](Ready ready) {
      for (float16& gradient : model.gradients)
        gradient = float16(0.125F * scaler.scale());
      model.bias_gradients[1] = float16(overflows && group.rank() == 2 ? 1e6F : 0x1p-30F * scaler.scale());
      ready(0);
      ready(1);
    };
    for (const bool overflows_now : {true, false}) {
      overflows = overflows_now;
      CHECK(ddp.backward(pass, {.scaler = &scaler, .master = &master}) == !overflows);
      CHECK(ddp.gradient_norm().finite == !overflows);
      CHECK(scaler.scale() == 32768);
      CHECK((!overflows || master.gradients()[0] == 0));  // as they were
    }
    const auto gradients = master.gradients();
    CHECK((gradients[0] == 0.125F && gradients[299] == 0.125F));
    CHECK((gradients[301] == 0x1p-30F && gradients[302] == 0));  // f16 itself has none so small
    const double norm = std::sqrt(300 * 0.125 * 0.125 + std::ldexp(1.0, -60));
    CHECK(std::abs(ddp.gradient_norm().norm / norm - 1) < 1e-12);
    CHECK(ddp.backward(pass, {.clip_norm = 1, .scaler = &scaler, .master = &master}));
    CHECK(std::abs(ddp.gradient_norm().before_clipping / norm - 1) < 1e-12);
    CHECK(std::abs(static_cast<double>(gradients[0]) - 0.125 / (norm + 1e-6)) < 1e-8);
    CHECK(static_cast<float>(model.gradients[0]) == 0.125F * scaler.scale());  // the model's stay
    CHECK((ddp.backward(pass, {.scaler = &scaler}) && static_cast<float>(model.gradients[0]) == 0.125F));
  });
}

TEST_CASE_TEMPLATE("master weights keep small changes that 16 bits lose, and round them to nearest even", Element,
                   float16, dtrain::bfloat16, float) {
  HalfModel<Element> model;
  MasterWeights master{model};
  REQUIRE(master.values().size() == 303);
  CHECK(master.values()[0] == 1);
  CHECK(master.values()[300] == static_cast<float>(Element(0.1F)));
  CHECK(master.parameters()[1].name == "bias");
  CHECK(master.parameters()[1].value.as<float>().data() == &master.values()[300]);
  for (int i = 0; i < 64; ++i) {
    master.values()[0] += 0x1p-12F;
    master.values()[301] = 0x1p-20F;
    master.store();
  }
  CHECK(static_cast<float>(model.values[0]) == 1.015625F);
  CHECK(static_cast<float>(model.values[1]) == 1);
  CHECK(static_cast<float>(model.bias[1]) == 0x1p-20F);
  model.bias[2] = Element(0.5F);
  MasterWeights moved = std::move(master);
  moved.load();
  CHECK(moved.values()[302] == 0.5F);
}

TEST_CASE("master weights refuse what is no float of 32 or 16 bits") {
  HalfModel<double> model;
  CHECK_THROWS_WITH_AS(MasterWeights{model}, doctest::Contains("parameter 0 'weight', of f64 on"), dtrain::Error);
}

TEST_CASE("gradients of a step without a norm are written to master weights as they are, and else multiplied") {
  run_well(2, [&](const Group& group) {
    HalfModel<dtrain::bfloat16> model;
    DistributedDataParallel ddp{model, group};
    MasterWeights master{model};
    const auto pass = [&](Ready ready) {
      model.gradients[7] = dtrain::bfloat16(static_cast<float>(4 * group.rank()));
      ready(1);
      ready(0);
    };
    CHECK(ddp.backward(pass, {.master = &master}));
    CHECK((master.gradients()[7] == 2 && master.gradients()[8] == 0));
    CHECK_ERROR(ddp.clip_gradients(1), Errc::invalid_argument);
    const auto halve = [](dtrain::StepGradients& gradients) {
      gradients.scale(0.5);
      return true;
    };
    CHECK(ddp.backward(pass, {.inspect = halve, .master = &master}));
    CHECK((master.gradients()[7] == 1 && master.gradients()[8] == 0));
    CHECK(static_cast<float>(model.gradients[7]) == 2);
  });
}
