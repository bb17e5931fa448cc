#pragma once
/// @file
/// sum_of_squares(), dot_product(): sums over floats in host memory, with equal bits on every processor. is_finite(),
/// under any flags.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/kernels/arithmetic/arithmetic.hpp"
#include "dtrain/kernels/arithmetic/half_arithmetic.hpp"
#include "dtrain/kernels/conversion.hpp"
#include "dtrain/kernels/instruction_sets/isa.hpp"
#include "dtrain/kernels/vector.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// The sum of `count` squares in f64, at any alignment. Element i is added to partial sum i modulo 16, and these are
/// added in order. A square of f32, f16 or bf16 is exact. So the sum is finite if and only if all these elements are;
/// for f64, squares beyond the largest value also make it infinite.
/// Requires: `dtype` is a float of 16 bits or more; this machine supports `isa`. Threads: any.
double sum_of_squares(DType dtype, const std::byte* from, std::size_t count, Isa isa = best_isa()) noexcept;

/// Whether `value` is neither infinite nor NaN, also under -ffast-math.
inline bool is_finite(double value) noexcept {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return (bits & 0x7ff0000000000000U) != 0x7ff0000000000000U;
}

/// Element i is added to partial sum i modulo `lanes`, in `Sum`; these are added in order, and then the elements that
/// fill no more lanes. Threads: any.
template <class Sum, std::size_t lanes>
DTRAIN_OPTIMIZED Sum dot_product(const float* a, const float* b, std::size_t count) noexcept {
  Sum sums[lanes] = {};
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      sums[lane] += static_cast<Sum>(a[i + lane]) * static_cast<Sum>(b[i + lane]);
    }
  }
  Sum sum = 0;
  for (const Sum lane : sums) {
    sum += lane;
  }
  for (; i < count; ++i) {
    sum += static_cast<Sum>(a[i]) * static_cast<Sum>(b[i]);
  }
  return sum;
}

}  // namespace DTRAIN_NAMESPACE::kernels

#if DTRAIN_DEFINITIONS

#include "dtrain/kernels/float_environment.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// Partial sums in one vector.
template <std::size_t Width>
struct SquareSums {
  static constexpr std::size_t elements = Width / sizeof(double);

  template <class Float>
  DTRAIN_ALWAYS_INLINE void add_block(const std::byte* from) noexcept {
    Vector<double, Width> squares;
    widen<Float>(squares, from);
    multiply(squares, squares);
    keep_product(squares);
    add(sums, squares);
  }

  /// g++: with AVX2 by asm, because g++ 12 converts four floats in two halves.
  template <class Float>
  DTRAIN_ALWAYS_INLINE static void widen(Vector<double, Width>& to, const std::byte* from) noexcept {
#if DTRAIN_X86_64 && !defined(__clang__)
    if constexpr (Width == 32 && std::is_same_v<Float, float>) {
      asm("{vcvtps2pd %1, %0|vcvtps2pd %0, %1}" : "=x"(to) : "m"(*reinterpret_cast<const std::byte(*)[16]>(from)));
      return;
    }
#endif
    Vector<Float, elements * sizeof(Float)> values;
    load(values, from);
    to = __builtin_convertvector(values, Vector<double, Width>);
  }

  Vector<double, Width> sums{};
};

/// Twice as many; its members are named as those of Twice.
template <class Half>
struct TwiceSquareSums {
  static constexpr std::size_t elements = 2 * Half::elements;

  template <class Float>
  DTRAIN_ALWAYS_INLINE void add_block(const std::byte* from) noexcept {
    first.template add_block<Float>(from);
    second.template add_block<Float>(from + Half::elements * sizeof(Float));
  }

  Half first, second;
};

/// 16 partial sums.
template <std::size_t Width>
using SquareSums16 = std::conditional_t<Width == 32, TwiceSquareSums<TwiceSquareSums<SquareSums<32>>>,
                                        TwiceSquareSums<TwiceSquareSums<TwiceSquareSums<SquareSums<16>>>>>;

/// Adds the squares of a multiple of 16 elements of f64, f32.
template <class Float, std::size_t Width>
DTRAIN_ALWAYS_INLINE void add_squares(SquareSums16<Width>& sums, const std::byte* from, std::size_t count) noexcept {
  SquareSums16<Width> local = sums;  // stays in registers
  for (std::size_t i = 0; i < count; i += local.elements) {
    local.template add_block<Float>(from + i * sizeof(Float));
  }
  sums = local;
}

/// Widens the 16-bit floats of a block to f32, which stays in the first-level cache.
template <DType dtype, std::size_t Width>
DTRAIN_ALWAYS_INLINE void add_squares_of_halves(SquareSums16<Width>& sums, const std::byte* from,
                                                std::size_t count) noexcept {
  constexpr std::size_t block = 256;
  alignas(64) std::byte floats[sizeof(float) * block];
  for (std::size_t i = 0; i < count; i += block) {
    const std::size_t length = count - i < block ? count - i : block;
#if DTRAIN_X86_64
    if constexpr (dtype == DType::f16 && Width == 32) {
      for (std::size_t k = 0; k < length; k += 16) {
        F16Native::Floats first, second;
        F16Native::widen(first, second, from + 2 * (i + k));
        store(floats + 4 * k, first);
        store(floats + 4 * k + sizeof(first), second);
      }
      add_squares<float, Width>(sums, floats, length);
      continue;
    }
#endif
    using Format = std::conditional_t<dtype == DType::f16, F16Words<Width>, Bf16Words<Width>>;
    widen_halves<Format>(floats, from + 2 * i, length);
    add_squares<float, Width>(sums, floats, length);
  }
}

template <DType dtype, std::size_t Width>
DTRAIN_ALWAYS_INLINE void add_all_squares(SquareSums16<Width>& sums, const std::byte* from,
                                          std::size_t count) noexcept {
  if constexpr (dtype == DType::f64) {
    add_squares<double, Width>(sums, from, count);
  } else if constexpr (dtype == DType::f32) {
    add_squares<float, Width>(sums, from, count);
  } else {
    add_squares_of_halves<dtype, Width>(sums, from, count);
  }
}

template <DType dtype, std::size_t Width>
DTRAIN_ALWAYS_INLINE void sum_squares(std::array<double, 16>& to, const std::byte* from, std::size_t count) noexcept {
  SquareSums16<Width> sums;
  const std::size_t whole = count - count % sums.elements;
  add_all_squares<dtype, Width>(sums, from, whole);
  if (whole < count) {
    std::byte rest[16 * size_bytes(dtype)] = {};
    std::memcpy(rest, from + whole * size_bytes(dtype), (count - whole) * size_bytes(dtype));
    add_all_squares<dtype, Width>(sums, rest, sums.elements);
  }
  static_assert(sizeof(sums) == sizeof(to));
  std::memcpy(to.data(), &sums, sizeof(sums));
}

template <DType dtype>
DTRAIN_OPTIMIZED void baseline_sum_squares(std::array<double, 16>& to, const std::byte* from,
                                           std::size_t count) noexcept {
  sum_squares<dtype, 16>(to, from, count);
}

#if DTRAIN_X86_64
template <DType dtype>
DTRAIN_OPTIMIZED __attribute__((target("avx2,f16c"))) void avx2_sum_squares(std::array<double, 16>& to,
                                                                            const std::byte* from,
                                                                            std::size_t count) noexcept {
  sum_squares<dtype, 32>(to, from, count);
}
#endif

template <DType dtype>
void sum_squares_with([[maybe_unused]] Isa isa, std::array<double, 16>& to, const std::byte* from,
                      std::size_t count) noexcept {
#if DTRAIN_X86_64
  if (isa == Isa::avx2) {
    return avx2_sum_squares<dtype>(to, from, count);
  }
#endif
  baseline_sum_squares<dtype>(to, from, count);
}

DTRAIN_DEFINED double sum_of_squares(DType dtype, const std::byte* from, std::size_t count, Isa isa) noexcept {
  const DefaultFloatEnvironment environment;
  std::array<double, 16> partial{};
  switch (dtype) {
    case DType::f64: sum_squares_with<DType::f64>(isa, partial, from, count); break;
    case DType::f32: sum_squares_with<DType::f32>(isa, partial, from, count); break;
    case DType::f16: sum_squares_with<DType::f16>(isa, partial, from, count); break;
    case DType::bf16: sum_squares_with<DType::bf16>(isa, partial, from, count); break;
    default: break;
  }
  double sum = 0;
  for (const double part : partial) {
    add(sum, part);
  }
  return sum;
}

}  // namespace DTRAIN_NAMESPACE::kernels

#endif  // DTRAIN_DEFINITIONS
