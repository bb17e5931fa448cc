#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "unit/ddp/prelude.hpp"

namespace {

/// What clipping makes of gradients whose norm is known.
StepDecision clipped(const dtrain::GradientNorm& norm, double max_norm) {
  StepDecision decision = decide_step({}, norm);
  decision.clip(max_norm);
  return decision;
}

}  // namespace

TEST_CASE("clipping takes 1e-6 more than the norm, which counts where the norm is small") {
  const dtrain::GradientNorm norm{3e-6, true};
  CHECK(clipped(norm, 1e-6).norm.before_clipping == 3e-6);
  CHECK(clipped(norm, 1e-6).factor == doctest::Approx(0.25));
  CHECK(clipped(norm, 3.5e-6).factor == doctest::Approx(0.875));  // the norm is below that, and with 1e-6 above
  CHECK(clipped(norm, 4.5e-6).factor == 1);
}

TEST_CASE("clipping leaves gradients whose norm is not finite as they are, and says so") {
  for (const double norm : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_FALSE(clipped({norm, false}, 1).norm.finite);
    CHECK(clipped({norm, false}, 1).factor == 1);
  }
}
