#pragma once
/// @file
/// FloatArithmetic: sums, averages and products of f32 and f64. avx2.hpp and baseline.hpp compile it into kernels.

#include <cstddef>
#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/kernels/arithmetic/arithmetic.hpp"
#include "dtrain/kernels/kernel_arguments.hpp"
#include "dtrain/kernels/vector.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// `Operation` is Add, AddWeighted, Average or Multiply. An average is the sum times the rounded reciprocal, because a
/// division for each element costs more than reading it. A sum is multiplied by one, which changes only a NaN and saves
/// a second loop.
template <class Float, std::size_t Width, class Operation>
class FloatArithmetic {
 public:
  static constexpr std::size_t bytes = Width;
  using Partial = Vector<Float, Width>;
  using Result = Partial;
  static constexpr bool averages = Operation::averages;
  using Beyond = Vector<std::int64_t, Width>;
  using Careful = FloatArithmetic<Float, 16, AddWeighted>;
  using Lane = typename BitsOf<Float>::Lane;
  static constexpr Lane magnitude = BitsOf<Float>::magnitude;
  static constexpr Lane infinity = BitsOf<Float>::infinity;

  DTRAIN_ALWAYS_INLINE explicit FloatArithmetic(const KernelArguments& arguments) noexcept
      : weights_(arguments.weights) {
    fill<Float, Width>(factor_, static_cast<Float>(arguments.factor));
  }
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from, std::size_t source) const noexcept {
    load(partial, from);
    if constexpr (Operation::weighs) {
      Partial weight;
      fill<Float, Width>(weight, static_cast<Float>(weights_[source]));
      multiply(partial, weight);
      keep_product(partial);
    }
  }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from, std::size_t source) const noexcept {
    Partial value;
    start(value, from, source);
    Operation::apply(partial, value);
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept {
    multiply(partial, factor_);
    if constexpr (!averages) {
      make_nan_canonical<Float, Width>(partial);
    }
    result = partial;
  }
  /// For averages, instead of make_nan_canonical: marks infinity and NaN.
  DTRAIN_ALWAYS_INLINE void note_beyond(Beyond& beyond, const Result& result) const noexcept {
    beyond |= (Beyond)(((Vector<Lane, Width>)result & infinity) == infinity);
  }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept { store(to, result); }

 private:
  Vector<Float, Width> factor_;
  const double* weights_;
};

}  // namespace DTRAIN_NAMESPACE::kernels
