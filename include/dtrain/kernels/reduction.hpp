#pragma once
/// @file
/// kernels::Reduction: combines elements of many ranks in host memory, in rank order, with equal bits on every
/// processor.

#include <cstddef>
#include <span>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/instruction_sets/isa.hpp"
#include "dtrain/kernels/kernel_arguments.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// `sources[0][i] op sources[1][i] op ...`, evaluated from the left, stored to every target. Supports every operation
/// for every element type but the 8-bit floats:
///
/// - f64, f32: one rounding for each step. An average is the sum times the rounded 1 / sources. If this product is not
///   finite, the average is the sum of the elements, each multiplied by 1 / sources first. An average of finite
///   elements is therefore finite, up to roundings.
/// - f16, bf16: the same in f32, then rounded once to nearest even; beyond the largest finite value, to infinity.
/// - min, max of these: a NaN on any rank gives NaN, and -0 < +0 (minimum and maximum of IEEE 754-2019).
/// - NaN results have the bits of the positive quiet NaN without payload.
/// - Integers: sum and product modulo 2^bits; an average is the exact sum divided, truncated toward zero.
/// - One source is copied, and a NaN keeps its bits; after over(), it is divided.
///
/// Compiler flags of the program (-ffast-math, -mfma) and settings of the calling thread (flushed subnormals, another
/// rounding) change no bit: the call sets the default environment meanwhile.
class Reduction {
 public:
  static constexpr std::size_t max_sources = KernelArguments::max_sources;

  /// Requires: `dtype` is no 8-bit float; this machine supports `isa`.
  static Reduction of(DType dtype, ReduceOp op, Isa isa = best_isa()) noexcept;

  /// This reduction for sources that stand for `ranks` ranks: an average divides by `ranks`, not by the number of
  /// sources. For the last combination of a chain of partial sums:
  /// - f64, f32: times the rounded 1 / ranks; f16, bf16: so in f32, then rounded once;
  /// - integers: this combination's exact sum, divided and truncated toward zero; earlier partial sums were modulo
  ///   2^bits.
  /// @param ranks at least 1
  [[nodiscard]] Reduction over(std::size_t ranks) const noexcept {
    Reduction divided = *this;
    divided.divisor_ = op_ == ReduceOp::average ? ranks : 0;
    return divided;
  }

  /// The sum of the sources, each multiplied by its weight from the call. f64, f32: one rounding for each product and
  /// each sum; f16, bf16: the same in f32, then rounded once. For averages whose partial sums are no larger than the
  /// elements. Requires: `dtype` is a float of 16 bits or more.
  static Reduction weighted_sum(DType dtype, Isa isa = best_isa()) noexcept;

  /// Reduces `count` elements of 1 to max_sources sources at any alignment. A target is one of the sources (the same
  /// address) or disjoint from all of them. Blocking: no longer than the reduction takes. Threads: any; a Reduction is
  /// a value without state. @param weights of a weighted sum: one for each source; rounded to f32, except for f64
  void operator()(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, std::size_t count,
                  const double* weights = nullptr) const noexcept;

 private:
  /// Reduces the bytes after the last whole multiple of the granularity, padded with zeros, by the kernel's
  /// instructions. A separate function, because only this case needs its memory.
  static void reduce_rest(Kernel kernel, KernelArguments arguments, std::size_t bytes) noexcept;

  Reduction(DType dtype, ReduceOp op, Kernel kernel) noexcept
      : kernel_(kernel), key_(key_bits(dtype, op == ReduceOp::min)), dtype_(dtype), op_(op) {}

  Kernel kernel_;
  KeyBits key_;
  DType dtype_;
  ReduceOp op_;
  std::size_t divisor_ = 0;  ///< 0: the number of sources
};

}  // namespace DTRAIN_NAMESPACE::kernels

#if DTRAIN_DEFINITIONS

#include <cstring>

#include "dtrain/kernels/arithmetic/arithmetic.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/float_environment.hpp"
#include "dtrain/kernels/instruction_sets/avx2.hpp"
#include "dtrain/kernels/instruction_sets/baseline.hpp"

namespace DTRAIN_NAMESPACE::kernels {

DTRAIN_DEFINED Reduction Reduction::of(DType dtype, ReduceOp op, Isa isa) noexcept {
  const Kernel kernel = isa == Isa::avx2 ? avx2_kernel_for(dtype, op) : nullptr;
  return Reduction(dtype, op, kernel != nullptr ? kernel : baseline_kernel_for(dtype, op));
}

DTRAIN_DEFINED Reduction Reduction::weighted_sum(DType dtype, Isa isa) noexcept {
  const Kernel kernel = isa == Isa::avx2 ? avx2_float_kernel<AddWeighted>(dtype) : nullptr;
  return Reduction(dtype, ReduceOp::sum, kernel != nullptr ? kernel : baseline_float_kernel<AddWeighted>(dtype));
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void Reduction::reduce_rest(Kernel kernel, KernelArguments arguments,
                                                              std::size_t bytes) noexcept {
  std::byte padded[max_sources][KernelArguments::granularity];
  const std::byte* sources[max_sources];
  for (std::size_t source = 0; source < arguments.source_count; ++source) {
    std::memcpy(padded[source], arguments.sources[source] + arguments.bytes, bytes);
    std::memset(padded[source] + bytes, 0, KernelArguments::granularity - bytes);
    sources[source] = padded[source];
  }
  const std::size_t begin = arguments.bytes;
  std::byte* const* const targets = arguments.targets;
  const std::size_t target_count = arguments.target_count;
  std::byte* const result = padded[0];
  arguments.sources = sources;
  arguments.targets = &result;
  arguments.target_count = 1;
  arguments.bytes = KernelArguments::granularity;
  kernel(arguments);
  for (std::size_t target = 0; target < target_count; ++target) {
    std::memcpy(targets[target] + begin, result, bytes);
  }
}

DTRAIN_DEFINED void Reduction::operator()(std::span<const std::byte* const> sources,
                                          std::span<std::byte* const> targets, std::size_t count,
                                          const double* weights) const noexcept {
  const std::size_t bytes = count * size_bytes(dtype_);
  if (sources.empty() || targets.empty() || bytes == 0) {
    return;
  }
  if (sources.size() == 1 && divisor_ == 0 && weights == nullptr) {
    for (std::byte* const target : targets) {
      if (target != sources[0]) {
        copy_bytes(target, sources[0], bytes);
      }
    }
    return;
  }
  const DefaultFloatEnvironment environment;
  const std::size_t whole = bytes - bytes % KernelArguments::granularity;
  KernelArguments arguments{sources.data(), sources.size(), targets.data(), targets.size(), whole, 1, 1, weights, key_};
  if (op_ == ReduceOp::average) {
    arguments.divisor = divisor_ != 0 ? divisor_ : sources.size();
    arguments.factor = reciprocal(arguments.divisor);
  }
  if (whole > 0) {
    kernel_(arguments);
  }
  if (whole < bytes) {
    reduce_rest(kernel_, arguments, bytes - whole);
  }
}

}  // namespace DTRAIN_NAMESPACE::kernels

#endif  // DTRAIN_DEFINITIONS
