#pragma once
/// @file
/// GradientNorm: L2 norm of a step's reduced gradients, if its StepOptions ask. clip_gradients(): scales to a norm.
/// BucketNorms: buckets' sums of squares.

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
  /// The norm that the gradients would have without clip_gradients, for a log. Clipping a MasterWeights or
  /// ShardedGradients also changes this one.
  double before_clipping = norm;

  /// The norm of the gradients times `factor`.
  GradientNorm times(double factor) const noexcept {
    const double magnitude = factor < 0 ? -factor : factor;
    return {norm * magnitude, finite, before_clipping * magnitude};
  }

  /// @param sum of the squares of all elements
  static GradientNorm of_squares(double sum) noexcept;
};

/// Options of one step.
/// @ingroup precision
struct StepOptions {
  /// Whether this rank measures the norm of the reduced gradients in this step. The gradients, and the norm on other
  /// ranks, do not depend on this option.
  bool measure_norm = false;
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

  /// Multiplies the norm by `factor`, and clips it by `clipping`. @pre the gradients were multiplied by both
  void multiply(double factor, double clipping) noexcept {
    if (norm_) {
      norm_ = norm_->times(factor);
      norm_->norm *= clipping;
    }
  }

  [[noreturn]] static void refuse_unmeasured();

 private:
  std::vector<double> sums_;
  std::optional<GradientNorm> norm_;
  bool is_wanted_ = false;
};

/// Multiplies floats in host memory by `factor`, rounded to f32 except for f64; each product is rounded once to the
/// element type, to nearest even.
void multiply_elements(const BufferView& elements, double factor) noexcept;

/// The factor of clip_gradients: min(1, max_norm / (norm + 1e-6)), and 1 for a norm that is not finite.
inline double clipping_factor(const GradientNorm& norm, double max_norm) noexcept {
  const double factor = max_norm / (norm.norm + 1e-6);
  return norm.finite && factor < 1 ? factor : 1;
}

/// @throws Error (invalid_argument) if `max_norm` is not positive
inline void require_max_norm(double max_norm) {
  if (!(max_norm > 0)) {
    throw_error(Errc::invalid_argument, "clip_gradients has a max_norm that is not positive; give a positive one");
  }
}

/// Scales the gradients of a DistributedDataParallel, MasterWeights or ShardedGradients to a norm of at most
/// `max_norm`.
/// The factor is min(1, max_norm / (norm + 1e-6)), as in torch.nn.utils.clip_grad_norm_, and equal on all ranks.
/// Gradients whose norm is not finite stay as they are. Skip the optimizer's step for such gradients (LossScaler::step
/// returns false). Reads and writes the gradients only if the factor is below 1. Blocking: as gradient_norm() of
/// `gradients`; DistributedDataParallel::clip_gradients does the same without a wait on CUDA.
/// @returns the norm before the scaling
/// @throws Error (invalid_argument) if the last step did not measure the norm, or `max_norm` is not positive
/// @ingroup precision
template <class Gradients>
requires requires(Gradients& gradients) {
  gradients.gradient_norm();
  gradients.scale_gradients(1.0);
}
GradientNorm clip_gradients(Gradients& gradients, double max_norm) {
  require_max_norm(max_norm);
  const GradientNorm before = gradients.gradient_norm();
  const double factor = clipping_factor(before, max_norm);
  if (!(factor < 1)) return before;
  if constexpr (requires { gradients.clip_gradients(max_norm); }) {
    gradients.clip_gradients(max_norm);
  } else {
    gradients.scale_gradients(factor);
  }
  return before;
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::clip_gradients;
using ddp::GradientNorm;
using ddp::StepOptions;
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
              "the norm of the gradients was asked for, but the last step did not measure it; call backward(f, "
              "{.measure_norm = true})");
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void BucketNorms::refuse_stream(const char* caller) {
  throw_error(Errc::unsupported,
              "{} has measure_norm, but the communicator's stream runs no work of the host; call it without, and "
              "compute the norm after the step",
              {caller});
}

DTRAIN_DEFINED void multiply_elements(const BufferView& elements, double factor) noexcept {
  const std::byte* const source = elements.data;
  std::byte* const target = elements.data;
  kernels::Reduction::weighted_sum(elements.dtype)({&source, 1}, {&target, 1}, elements.count, &factor);
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
