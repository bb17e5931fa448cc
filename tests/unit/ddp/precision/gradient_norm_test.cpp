#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "unit/ddp/prelude.hpp"

namespace {

/// Gradients of which only the norm is known.
struct MeasuredGradients {
  const dtrain::GradientNorm& gradient_norm() const noexcept { return norm; }
  void scale_gradients(double by) noexcept { factor *= by; }

  dtrain::GradientNorm norm;
  double factor = 1;  ///< of all calls
};

}  // namespace

TEST_CASE("clipping takes 1e-6 more than the norm, which counts where the norm is small") {
  MeasuredGradients gradients{{3e-6, true}};
  CHECK(dtrain::clip_gradients(gradients, 1e-6).norm == 3e-6);
  CHECK(gradients.factor == doctest::Approx(0.25));
  MeasuredGradients small{{3e-6, true}};
  dtrain::clip_gradients(small, 3.5e-6);  // the norm is below that, and with 1e-6 above
  CHECK(small.factor == doctest::Approx(0.875));
  MeasuredGradients smaller{{3e-6, true}};
  dtrain::clip_gradients(smaller, 4.5e-6);
  CHECK(smaller.factor == 1);
}

TEST_CASE("clipping leaves gradients whose norm is not finite as they are, and says so") {
  for (const double norm : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    MeasuredGradients gradients{{norm, false}};
    CHECK_FALSE(dtrain::clip_gradients(gradients, 1).finite);
    CHECK(gradients.factor == 1);
  }
}
