#pragma once
/// @file
/// Floating-point operations for the loops of instruction_sets/: one rounding each, in the order they are written.
///
/// -ffast-math may add in another order, fuse a product into a sum, and assume that no NaN occurs. A pragma prevents
/// this with clang on x86; elsewhere an empty asm needs each result in a register before the next step. NaN is compared
/// as an integer, which no flag can fold.

#include <cstddef>
#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/kernels/vector.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// Hides from the compiler how `value` was computed.
template <class V>
DTRAIN_ALWAYS_INLINE void keep_as_computed([[maybe_unused]] V& value) noexcept {
#if DTRAIN_PRECISE_PRAGMA
#elif DTRAIN_X86_64
  asm("" : "+v"(value));
#elif DTRAIN_ARM64
  if constexpr (sizeof(V) <= 16) {
    asm("" : "+w"(value));
  } else {
    asm("" : "+m"(value));
  }
#else
  asm("" : "+m"(value));
#endif
}

/// For a product that is added next: clang's -ffp-contract=fast fuses it with the sum despite the pragma.
template <class V>
DTRAIN_ALWAYS_INLINE void keep_product([[maybe_unused]] V& value) noexcept {
#if DTRAIN_PRECISE_PRAGMA
  asm("" : "+m"(value));
#endif
}

template <class V>
DTRAIN_ALWAYS_INLINE void add(V& to, const V& value) noexcept {
  DTRAIN_PRECISE_ARITHMETIC
  to = to + value;
  keep_as_computed(to);
}

template <class V>
DTRAIN_ALWAYS_INLINE void subtract(V& from, const V& value) noexcept {
  DTRAIN_PRECISE_ARITHMETIC
  from = from - value;
  keep_as_computed(from);
}

template <class V>
DTRAIN_ALWAYS_INLINE void multiply(V& to, const V& value) noexcept {
  DTRAIN_PRECISE_ARITHMETIC
  to = to * value;
  keep_as_computed(to);
}

/// 1 / count, rounded to nearest. Converted to float, it is float's rounded reciprocal, because double has more than
/// twice float's digits. Requires the default rounding.
inline double reciprocal(std::size_t count) noexcept {
  DTRAIN_PRECISE_ARITHMETIC
  double one = 1;
  keep_as_computed(one);
  double quotient = one / static_cast<double>(count);
  keep_as_computed(quotient);
  return quotient;
}

/// Replaces every NaN by one bit pattern, because instructions differ in the sign and bits of a NaN result.
template <class Float, std::size_t Width>
DTRAIN_ALWAYS_INLINE void make_nan_canonical(Vector<Float, Width>& value) noexcept {
  using Bits = BitsOf<Float>;
  using Integers = Vector<typename Bits::Lane, Width>;
  Integers bits = (Integers)value;
  Integers canonical;
  fill<typename Bits::Lane, Width>(canonical, Bits::nan);
  replace_where(bits, (Integers)((bits & Bits::magnitude) > Bits::infinity), canonical);
  value = (Vector<Float, Width>)bits;
}

/// make_nan_canonical() for two 16-bit floats in each word; a magnitude beyond `infinity` is NaN.
template <std::size_t Width, class V>
DTRAIN_ALWAYS_INLINE void make_halves_canonical(V& words, std::int16_t infinity, std::int16_t nan) noexcept {
  using Halves = Vector<std::int16_t, Width>;
  Halves halves = (Halves)words;
  Halves magnitude, limit, canonical;
  fill<std::int16_t, Width>(magnitude, 0x7fff);
  fill<std::int16_t, Width>(limit, infinity);
  fill<std::int16_t, Width>(canonical, nan);
  replace_where(halves, (Halves)((halves & magnitude) > limit), canonical);
  words = (V)halves;
}

/// Whether any bit is set. g++ does not choose vptest by itself.
template <std::size_t Width>
DTRAIN_ALWAYS_INLINE bool any(const Vector<std::int64_t, Width>& bits) noexcept {
#if DTRAIN_X86_64 && !defined(__clang__)
  if constexpr (Width == 32) {
    bool found = false;
    asm("vptest %1, %1" : "=@ccnz"(found) : "x"(bits));
    return found;
  }
#endif
  std::int64_t all = bits[0];
  for (std::size_t lane = 1; lane < Width / sizeof(std::int64_t); ++lane) {
    all |= bits[lane];
  }
  return all != 0;
}

struct Add {
  static constexpr bool weighs = false;    ///< whether each source is first multiplied by its own weight
  static constexpr bool averages = false;  ///< whether results that are not finite are computed again (Careful)
  template <class V>
  DTRAIN_ALWAYS_INLINE static void apply(V& to, const V& value) noexcept {
    add(to, value);
  }
};

struct AddWeighted : Add {
  static constexpr bool weighs = true;
};

struct Average : Add {
  static constexpr bool averages = true;
};

struct Multiply {
  static constexpr bool weighs = false;
  static constexpr bool averages = false;
  template <class V>
  DTRAIN_ALWAYS_INLINE static void apply(V& to, const V& value) noexcept {
    multiply(to, value);
  }
};

}  // namespace DTRAIN_NAMESPACE::kernels
