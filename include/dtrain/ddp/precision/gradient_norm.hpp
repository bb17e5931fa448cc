#pragma once
/// @file
/// GradientNorm: L2 norm of a step's reduced gradients, if its StepOptions need it. BucketNorms: buckets' sums of
/// squares.

#include <cstddef>
#include <optional>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// L2 norm of all gradients of a model, as one vector.
/// @ingroup precision
struct GradientNorm {
  double norm = 0;
  /// Whether the norm is finite: no element is infinite or NaN, and no square of an f64 element overflows.
  bool finite = true;
  /// The norm that the gradients would have without clipping, for a log.
  double before_clipping = norm;

  /// The norm of the gradients times `factor`.
  GradientNorm times(double factor) const noexcept {
    const double magnitude = factor < 0 ? -factor : factor;
    return {norm * magnitude, finite, before_clipping * magnitude};
  }

  /// @param sum of the squares of all elements
  static GradientNorm of_squares(double sum) noexcept;
};

/// Sums of squares of a step's reduced buckets, in f64. A communicator that CanSumSquares gives each sum with the
/// bucket's reduction. For other communicators SquareSum reads the reduced bucket, which has the same bits on all
/// ranks. The sums are added in bucket order, so that all ranks have the same norm without another collective.
/// Steady state: allocates nothing. Threads: a bucket's work runs on the communication stream; all other calls run
/// between steps. Lifetime: the object outlives the work.
class BucketNorms {
 public:
  /// Work for a stream: adds up the squares of a bucket, padding included, which is zero.
  struct SquareSum {
    double* sum;
    BufferView bucket;
    void operator()() const noexcept;
  };

  /// Adopts the plan. The measured norm stays valid.
  template <class Stream>
  void plan(const BucketPlan& plan, const Stream&) {
    sums_.assign(plan.buckets.size(), 0);
  }

  void begin_step(bool wanted) noexcept {
    is_wanted_ = wanted;
    norm_.reset();
  }

  /// Address for the bucket's sum in this step; null if the step does not measure.
  double* sum_of(std::size_t bucket) noexcept { return is_wanted_ ? &sums_[bucket] : nullptr; }

  /// Adds up the squares of a reduced bucket, by work on the stream.
  template <class Stream>
  requires requires(Stream stream, SquareSum work) { stream.enqueue(work); }
  static void enqueue(double* sum, const BufferView& bucket, Stream stream) { stream.enqueue(SquareSum{sum, bucket}); }

  /// Call when the work of all buckets has run.
  void finish_step() noexcept;

  bool is_measured() const noexcept { return norm_.has_value(); }

  /// @throws Error (invalid_argument) if the last step did not measure.
  const GradientNorm& norm() const {
    if (!norm_) {
      refuse_unmeasured();
    }
    return *norm_;
  }

  /// @throws Error (unsupported) for a step whose stream neither is CUDA's nor runs work of the host
  [[noreturn]] static void refuse_stream(const char* caller);

  /// After a step whose gradients were measured or multiplied otherwise.
  void set(const GradientNorm& norm) noexcept { norm_ = norm; }

  [[noreturn]] static void refuse_unmeasured();

 private:
  std::vector<double> sums_;
  std::optional<GradientNorm> norm_;
  bool is_wanted_ = false;
};

/// Multiplies floats in host memory by `factor`, rounded to f32 except for f64; each product is rounded once to the
/// element type, to nearest even.
void multiply_elements(const BufferView& elements, double factor) noexcept;

/// The factor of clipping: min(1, max_norm / (norm + 1e-6)), and 1 for a norm that is not finite.
inline double clipping_factor(const GradientNorm& norm, double max_norm) noexcept {
  const double factor = max_norm / (norm.norm + 1e-6);
  return norm.finite && factor < 1 ? factor : 1;
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::GradientNorm;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <cmath>

#include "dtrain/kernels/reduction.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED GradientNorm GradientNorm::of_squares(double sum) noexcept {
  const double norm = std::sqrt(sum);
  return {norm, kernels::is_finite(sum), norm};
}

DTRAIN_DEFINED void BucketNorms::SquareSum::operator()() const noexcept {
  *sum = kernels::sum_of_squares(bucket.dtype, bucket.data, bucket.count);
}

DTRAIN_DEFINED void BucketNorms::finish_step() noexcept {
  if (!is_wanted_) {
    return;
  }
  double sum = 0;
  for (const double bucket : sums_) {
    sum += bucket;
  }
  norm_ = GradientNorm::of_squares(sum);
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void BucketNorms::refuse_unmeasured() {
  throw_error(Errc::invalid_argument,
              "the norm of the gradients was asked for, but the last step did not measure it; give that step "
              "StepOptions::measure_norm");
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void BucketNorms::refuse_stream(const char* caller) {
  throw_error(
      Errc::unsupported,
      "{} has options that need the norm of the gradients, but the communicator's stream runs no work of the host; "
      "call it without, and compute the norm after the step",
      {caller});
}

DTRAIN_DEFINED void multiply_elements(const BufferView& elements, double factor) noexcept {
  const std::byte* const source = elements.data;
  std::byte* const target = elements.data;
  kernels::Reduction::weighted_sum(elements.dtype)({&source, 1}, {&target, 1}, elements.count, &factor);
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
