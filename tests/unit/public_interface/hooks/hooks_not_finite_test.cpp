// Hooks and gradients that are not finite: a step with some is skipped on every rank, and the next one is as before.

#include "unit/public_interface/prelude.hpp"

namespace hooks_not_finite_test {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t rows = 64;
constexpr int steps = 40;

/// A matrix and a vector, beside each other in a bucket.
struct Matrix : front_test::Shaped<> {
  Matrix() : Shaped({{rows, rows}, {7}}) {}
};

/// Some elements of one rank's gradient that are not finite.
struct Fault {
  int step;
  int rank;
  float value;
  std::size_t first;
  std::size_t count;
};

struct Run {
  std::vector<Fault> faults;
  int skipped;
  bool accumulates = false;  ///< two passes a step, of which the first, with the faults, does not reduce
};

/// Adds a pass's gradients.
void add_gradients(Matrix& model, float scale, int step, int rank, const std::vector<Fault>& faults) {
  for (std::size_t i = 0; i < model.list.size(); ++i) {
    for (std::size_t k = 0; k < model.gradients[i].size(); ++k)
      model.gradients[i][k] += 0.01F * scale * std::sin(static_cast<float>(rank + 1) + 0.37F * static_cast<float>(k));
  }
  for (const Fault& fault : faults) {
    if (fault.step == step && fault.rank == rank)
      std::fill_n(model.gradients[0].begin() + static_cast<std::ptrdiff_t>(fault.first), fault.count, fault.value);
  }
}

/// @param scale of the pass's loss @returns whether an optimizer would update
template <class Ddp>
bool pass(Ddp& ddp, Matrix& model, dtrain::LossScaler& scaler, float scale, int step, int rank,
          const std::vector<Fault>& faults) {
  return ddp.backward(
      [&](Ready ready) {
        add_gradients(model, scale, step, rank, faults);
        all_ready(ready, 2);
      },
      {.scaler = &scaler});
}

/// @returns what is wrong with the training, empty if nothing is
template <class Make>
std::string train(const Group& group, Make make, const Run& run) {
  auto hook = make();
  Matrix model;
  DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
  dtrain::LossScaler scaler;
  int skipped = 0;
  float expected_scale = scaler.scale();
  for (int step = 0; step < steps; ++step) {
    for (std::vector<float>& gradient : model.gradients)
      std::fill(gradient.begin(), gradient.end(), 0.0F);
    if (run.accumulates) {
      const auto held = ddp.no_sync();
      pass(ddp, model, scaler, scaler.scale() / 2, step, group.rank(), run.faults);  // leaves the scale
    }
    if (!pass(ddp, model, scaler, scaler.scale() / (run.accumulates ? 2 : 1), step, group.rank(),
              run.accumulates ? std::vector<Fault>() : run.faults)) {
      ++skipped;
      expected_scale /= 2;
    }
  }
  std::string wrong;
  if (skipped != run.skipped) wrong += std::to_string(skipped) + " steps are skipped; ";
  if (scaler.scale() != expected_scale) wrong += "the scale is " + std::to_string(scaler.scale()) + "; ";
  const auto is_usual = [](float one) { return std::abs(one) < 2; };  // of 0.01, with what comes late
  for (const std::vector<float>& gradient : model.gradients) {
    if (!std::all_of(gradient.begin(), gradient.end(), is_usual)) wrong += "the last gradients are not usual; ";
  }
  return wrong;
}

template <class Make>
void check(Make make, int plain_steps = 0) {
  const std::vector<Run> runs{
      {{{2, 1, not_a_number, 0, rows * rows}}, 1},
      {{{2, 0, infinity, 100, 600}}, 1},
      {{{2, 0, -infinity, 5, 1}}, 1},
      {{{2, 0, infinity, 0, 2000}, {2, 1, -infinity, 1000, 2000}}, 1},  // of which sums are NaN
      {{{2, 1, not_a_number, 0, 600}, {20, 0, infinity, 0, 600}, {38, 1, infinity, 0, 1}}, 3},
      {{{2, 1, not_a_number, 0, 600}, {3, 1, not_a_number, 0, 600}}, 2},
      {{{2, 1, not_a_number, 0, 600}}, 1, true},
      {{{plain_steps, 0, infinity, 0, 600}}, 1},
  };
  for (const Run& run : runs) {
    std::vector<std::string> wrong(2, "it did not end");
    run_well(2, [&](const Group& group) { wrong[static_cast<std::size_t>(group.rank())] = train(group, make, run); });
    CAPTURE(run.faults[0].value);
    CAPTURE(run.faults[0].count);
    CAPTURE(run.accumulates);
    CHECK(wrong == std::vector<std::string>(2));
  }
}

TEST_CASE("a step with gradients that are not finite is one skipped step, with error feedback as without") {
  using namespace dtrain::hooks;
  SUBCASE("TopK") {
    check([] { return TopK{{.fraction = 0.01}}; });
    check([] { return TopK{{.fraction = 0.01, .start_after = 5}}; }, 5);
  }
  SUBCASE("PowerSgd") {
    check([] { return PowerSgd{{.rank = 4}}; });
    check([] { return PowerSgd{{.rank = 1, .start_after = 5}}; }, 5);
  }
  SUBCASE("Cast") {
    check([] { return Cast<dtrain::bfloat16>{{.error_feedback = every_parameter}}; });
    check([] { return Cast<dtrain::float16>{{.error_feedback = every_parameter}}; });
    check([] { return Cast<dtrain::float16>{}; });
  }
}

TEST_CASE("after a step that is not finite, the errors of TopK are finite, and no element is lost but those") {
  run_well(1, [](const Group& group) {
    Model model({1000});
    dtrain::hooks::TopK hook{{.fraction = 0.01}};
    DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
    ddp.backward([&](Ready ready) {
      std::fill_n(model.gradients[0].begin(), 600, infinity);
      std::fill_n(model.gradients[0].begin() + 600, 400, 0.5F);
      ready(0);
    });
    const auto state = hook.state(group);
    REQUIRE(state.size() == 2);
    const auto error = state[1].value.as<float>();
    CHECK(std::count(error.begin(), error.begin() + 600, 0.0F) == 600);
    CHECK(std::count(error.begin() + 600, error.end(), 0.5F) == 400);
  });
}

}  // namespace hooks_not_finite_test
