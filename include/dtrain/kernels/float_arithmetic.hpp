#pragma once
/// @file
/// Sums, averages and products of f32 and f64.

#include <cstddef>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/kernels/arithmetic.hpp"
#include "dtrain/kernels/vector.hpp"
#include "dtrain/kernels/work.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// `Operation` is Add or Multiply. An average is the sum times the rounded reciprocal: a division for each element
/// costs more than reading it. A sum is multiplied by one, which changes nothing but a NaN, and saves a loop.
template <class Float, std::size_t Width, class Operation>
class FloatArithmetic {
 public:
  static constexpr std::size_t bytes = Width;
  using Partial = Vector<Float, Width>;
  using Result = Partial;

  DTRAIN_ALWAYS_INLINE explicit FloatArithmetic(const Work& work) noexcept {
    fill<Float, Width>(factor_, static_cast<Float>(work.factor));
  }
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from) const noexcept { load(partial, from); }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from) const noexcept {
    Partial value;
    load(value, from);
    Operation::apply(partial, value);
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept {
    multiply(partial, factor_);
    make_nan_canonical<Float, Width>(partial);
    result = partial;
  }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept { store(to, result); }

 private:
  Vector<Float, Width> factor_;
};

}  // namespace DTRAIN_NAMESPACE::kernels
