#pragma once
/// @file
/// HalfArithmetic of the reduction kernels: f16 and bf16 combined in f32 from the left, rounded once at the end.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dtrain/core/config.hpp"
#include "dtrain/kernels/arithmetic/arithmetic.hpp"
#include "dtrain/kernels/kernel_arguments.hpp"
#include "dtrain/kernels/vector.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// bf16 in the lower and upper halves of 32-bit words. Not `vcvtneps2bf16`, which takes subnormals for zero.
template <std::size_t Width>
struct Bf16Words {
  static constexpr std::size_t bytes = Width;
  using Floats = Vector<float, Width>;
  using Packed = Vector<std::uint32_t, Width>;

  DTRAIN_ALWAYS_INLINE static void widen(Floats& lower, Floats& upper, const std::byte* from) noexcept {
    Packed words;
    load(words, from);
    lower = (Floats)(words << 16U);
    upper = (Floats)(words & 0xffff0000U);
  }
  DTRAIN_ALWAYS_INLINE static void narrow(Packed& packed, const Floats& lower, const Floats& upper) noexcept {
    pack(packed, lower, upper);
    make_halves_canonical<Width>(packed, 0x7f80, 0x7fc0);
  }
  /// A NaN stays a NaN, with any bits.
  DTRAIN_ALWAYS_INLINE static void pack(Packed& packed, const Floats& lower, const Floats& upper) noexcept {
    Packed low, high;
    round(low, lower);
    round(high, upper);
    packed = (low >> 16U) | (high & 0xffff0000U);
  }
  DTRAIN_ALWAYS_INLINE static void put(std::byte* to, const Packed& packed) noexcept { store(to, packed); }

  /// One element in the lower half of each word, and back. Requires that a NaN has no bits below the upper 16.
  DTRAIN_ALWAYS_INLINE static void widen(Floats& to, const Packed& halves) noexcept { to = (Floats)(halves << 16U); }
  DTRAIN_ALWAYS_INLINE static void narrow(Packed& to, const Floats& value) noexcept {
    round(to, value);
    to = to >> 16U;
    make_halves_canonical<Width>(to, 0x7f80, 0x7fc0);
  }

 private:
  /// Rounds to nearest even in the upper 16 bits; beyond the largest finite value, the carry makes infinity.
  DTRAIN_ALWAYS_INLINE static void round(Packed& to, const Floats& value) noexcept {
    const Packed bits = (Packed)value;
    to = bits + 0x7fffU + ((bits >> 16U) & 1U);
  }
};

/// f16 in such words, by integer operations and one addition that is exact or rounded once. Gives the bits of F16C's
/// instructions, also for subnormals. Source of the method: F. Giesen, "Float->half variants" (public domain).
template <std::size_t Width>
struct F16Words {
  static constexpr std::size_t bytes = Width;
  using Floats = Vector<float, Width>;
  using Packed = Vector<std::uint32_t, Width>;

  DTRAIN_ALWAYS_INLINE static void widen(Floats& lower, Floats& upper, const std::byte* from) noexcept {
    Packed words;
    load(words, from);
    widen(lower, words & 0xffffU);
    widen(upper, words >> 16U);
  }
  DTRAIN_ALWAYS_INLINE static void narrow(Packed& packed, const Floats& lower, const Floats& upper) noexcept {
    Packed low, high;
    narrow(low, lower);
    narrow(high, upper);
    packed = low | (high << 16U);
    make_halves_canonical<Width>(packed, 0x7c00, 0x7e00);
  }
  DTRAIN_ALWAYS_INLINE static void put(std::byte* to, const Packed& packed) noexcept { store(to, packed); }

  /// One element in the lower half of each word, and back; a NaN keeps its sign.
  DTRAIN_ALWAYS_INLINE static void widen(Floats& to, const Packed& halves) noexcept {
    const Packed magnitude = (halves & 0x7fffU) << 13U;
    const Packed exponent = magnitude & 0x0f800000U;
    const Packed special = (Packed)(exponent == 0x0f800000U);  // infinity or NaN: gets the largest exponent
    const Packed subnormal = (Packed)(exponent == Packed{});
    // A subnormal gets the exponent 2^-14 and an implicit one, which the subtraction removes.
    const Packed rebased = magnitude + (112U << 23U) + (special & (112U << 23U)) + (subnormal & (1U << 23U));
    Floats value = (Floats)rebased;
    subtract(value, (Floats)(subnormal & (113U << 23U)));
    to = (Floats)((Packed)value | ((halves & 0x8000U) << 16U));
  }
  DTRAIN_ALWAYS_INLINE static void narrow(Packed& to, const Floats& value) noexcept {
    using Signed = Vector<std::int32_t, Width>;  // SSE2 compares signed lanes only
    const Packed bits = (Packed)value;
    const Packed positive = bits & 0x7fffffffU;
    const Signed magnitude = (Signed)positive;
    // Added to a half, a value below 2^-14 leaves its multiple of 2^-24 in the lowest bits.
    Floats small = (Floats)positive;
    add(small, Floats{} + 0.5F);
    Packed half = (positive - (112U << 23U) + 0xfffU + ((positive >> 13U) & 1U)) >> 13U;
    replace_where(half, (Packed)(magnitude < (113 << 23)), (Packed)small - (126U << 23U));
    replace_where(half, (Packed)(magnitude >= (143 << 23)), Packed{} + 0x7c00U);
    replace_where(half, (Packed)(magnitude > (255 << 23)), Packed{} + 0x7e00U);
    to = half | ((bits & 0x80000000U) >> 16U);
  }
};

/// Computes with `Format::bytes` bytes of elements as two vectors of f32. A `Format` has types Floats and Packed and
///   widen(Floats&, Floats&, from), narrow(Packed&, Floats const&, Floats const&), put(to, Packed const&)
template <class Format, class Operation>
class HalfArithmetic {
 public:
  static constexpr std::size_t bytes = Format::bytes;
  using Floats = typename Format::Floats;
  struct Partial {
    Floats first, second;
  };
  using Result = typename Format::Packed;
  static constexpr bool averages = Operation::averages;
  using Beyond = Vector<std::int64_t, sizeof(Result)>;
  using Careful = HalfArithmetic<Bf16Words<16>, AddWeighted>;
  using Lane = std::int16_t;
  static constexpr Lane magnitude = 0x7fff;
  static constexpr Lane infinity = 0x7f80;

  DTRAIN_ALWAYS_INLINE explicit HalfArithmetic(const KernelArguments& arguments) noexcept
      : weights_(arguments.weights) {
    fill<float, sizeof(Floats)>(factor_, static_cast<float>(arguments.factor));
  }
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from, std::size_t source) const noexcept {
    Format::widen(partial.first, partial.second, from);
    if constexpr (Operation::weighs) {
      Floats weight;
      fill<float, sizeof(Floats)>(weight, static_cast<float>(weights_[source]));
      multiply(partial.first, weight);
      multiply(partial.second, weight);
      keep_product(partial.first);
      keep_product(partial.second);
    }
  }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from, std::size_t source) const noexcept {
    Partial value;
    start(value, from, source);
    Operation::apply(partial.first, value.first);
    Operation::apply(partial.second, value.second);
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept {
    multiply(partial.first, factor_);
    multiply(partial.second, factor_);
    if constexpr (averages) {
      Format::pack(result, partial.first, partial.second);
    } else {
      Format::narrow(result, partial.first, partial.second);
    }
  }
  /// For averages of bf16: marks infinity and NaN.
  DTRAIN_ALWAYS_INLINE void note_beyond(Beyond& beyond, const Result& result) const noexcept {
    beyond |= (Beyond)(((Vector<Lane, sizeof(Result)>)result & infinity) == infinity);
  }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept { Format::put(to, result); }

 private:
  Floats factor_;
  const double* weights_;
};

/// An f32 holds the sum of any number of ranks' f16, so that averages need no Careful.
template <class Operation>
using OfF16 = std::conditional_t<Operation::averages, Add, Operation>;

#if DTRAIN_X86_64
/// A format for HalfArithmetic. Converts by asm and not by intrinsics, because <immintrin.h> costs every user compile
/// time. The immediate 0 rounds to nearest even whatever MXCSR says; subnormals are exact both ways. The operand of
/// vcvtph2ps is in memory, because a separate load costs as much as the conversion.
/// (ThreadSanitizer does not see these reads; it sees the stores, and those of all other kernels.)
struct F16Native {
  static constexpr std::size_t bytes = 32;
  using Floats = Vector<float, bytes>;
  using Packed = Vector<std::uint16_t, bytes>;

  DTRAIN_TARGET_HELPER("avx2,f16c") static void widen(Floats& first, Floats& second, const std::byte* from) noexcept {
    widen(first, from);
    widen(second, from + bytes / 2);
  }
  DTRAIN_TARGET_HELPER("avx2,f16c")
  static void narrow(Packed& packed, const Floats& first, const Floats& second) noexcept {
    [[maybe_unused]] Vector<std::uint16_t, bytes / 2> upper;
    asm("{vcvtps2ph $0, %2, %x0|vcvtps2ph %x0, %2, 0}\n\t"
        "{vcvtps2ph $0, %3, %1|vcvtps2ph %1, %3, 0}\n\t"
        "{vinserti128 $1, %1, %0, %0|vinserti128 %0, %0, %1, 1}"
        : "=&x"(packed), "=&x"(upper)
        : "x"(first), "x"(second));
    make_halves_canonical<bytes>(packed, 0x7c00, 0x7e00);
  }
  DTRAIN_ALWAYS_INLINE static void put(std::byte* to, const Packed& packed) noexcept { store(to, packed); }

 private:
  /// Converts a vector of f16 to a vector of f32 of the same number of elements.
  DTRAIN_TARGET_HELPER("avx2,f16c") static void widen(Floats& to, const std::byte* from) noexcept {
    asm("{vcvtph2ps %1, %0|vcvtph2ps %0, %1}" : "=x"(to) : "m"(*reinterpret_cast<const std::byte(*)[16]>(from)));
  }
};
#endif

}  // namespace DTRAIN_NAMESPACE::kernels
