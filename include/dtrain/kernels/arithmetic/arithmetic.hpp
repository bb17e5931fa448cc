#pragma once
/// @file
/// FloatArithmetic, IntegerSum, MinMax: arithmetic of the reduction kernels; each floating-point operation is rounded
/// once, in the written order, under any compiler flags.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "dtrain/core/config.hpp"
#include "dtrain/kernels/kernel_arguments.hpp"
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

/// The sum modulo 2^bits. `Lane` is unsigned and also serves the signed type.
template <class Lane, std::size_t Width>
struct IntegerSum {
  static constexpr std::size_t bytes = Width;
  using Partial = Vector<Lane, Width>;
  using Result = Partial;
  static constexpr bool averages = false;

  DTRAIN_ALWAYS_INLINE explicit IntegerSum(const KernelArguments& /*nothing varies*/) noexcept {}
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from, std::size_t /*source*/) const noexcept {
    load(partial, from);
  }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from, std::size_t /*source*/) const noexcept {
    Partial value;
    load(value, from);
    partial = partial + value;
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept { result = partial; }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept { store(to, result); }
};

/// At any alignment.
template <class T>
T element(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

/// The product modulo 2^bits, one element after the other, because training does not use it.
template <class Unsigned>
DTRAIN_OPTIMIZED void integer_product(const KernelArguments& arguments) noexcept {
  for (std::size_t i = 0; i < arguments.bytes; i += sizeof(Unsigned)) {
    std::uint64_t product = 1;
    for (std::size_t rank = 0; rank < arguments.source_count; ++rank) {
      product *= element<Unsigned>(arguments.sources[rank] + i);
    }
    const auto result = static_cast<Unsigned>(product);
    for (std::size_t target = 0; target < arguments.target_count; ++target) {
      std::memcpy(arguments.targets[target] + i, &result, sizeof(result));
    }
  }
}

/// The exact sum, which fits `Wide`, divided by KernelArguments::divisor and truncated toward zero.
template <class Integer, class Wide>
DTRAIN_OPTIMIZED void integer_average(const KernelArguments& arguments) noexcept {
  for (std::size_t i = 0; i < arguments.bytes; i += sizeof(Integer)) {
    Wide sum = 0;
    for (std::size_t rank = 0; rank < arguments.source_count; ++rank) {
      sum += element<Integer>(arguments.sources[rank] + i);
    }
    const auto result = static_cast<Integer>(sum / static_cast<Wide>(arguments.divisor));
    for (std::size_t target = 0; target < arguments.target_count; ++target) {
      std::memcpy(arguments.targets[target] + i, &result, sizeof(result));
    }
  }
}

__extension__ typedef __int128 WideInteger;  // -Wpedantic warns without __extension__
__extension__ typedef unsigned __int128 WideUnsigned;

/// Converts elements to keys that are ordered as signed integers. One loop therefore does min and max, also for f16 and
/// bf16, without conversion; the differences are in KernelArguments::key.
/// - Floats: a negative value has the bits below its sign inverted, so that -0 < +0; NaN is the greatest key. This is
///   minimum and maximum of IEEE 754-2019.
/// - Unsigned integers: the highest bit is inverted.
/// - For min, all keys but NaN's are inverted.
template <class Lane, std::size_t Width>
class MinMax {
 public:
  static constexpr std::size_t bytes = Width;
  using Partial = Vector<Lane, Width>;
  using Result = Partial;
  static constexpr bool averages = false;

  DTRAIN_ALWAYS_INLINE explicit MinMax(const KernelArguments& arguments) noexcept {
    fill<Lane, Width>(flip_, static_cast<Lane>(arguments.key.flip));
    fill<Lane, Width>(magnitude_, static_cast<Lane>(arguments.key.magnitude));
    fill<Lane, Width>(infinity_, static_cast<Lane>(arguments.key.infinity));
    fill<Lane, Width>(greatest_, static_cast<Lane>(arguments.key.greatest));
    fill<Lane, Width>(greatest_key_, greatest_key);
  }
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from, std::size_t /*source*/) const noexcept {
    Partial value;
    load(value, from);
    partial = value ^ ((Partial)(value < Partial{}) & magnitude_) ^ flip_;
    replace_where(partial, (Partial)((value & greatest_key_) > infinity_), greatest_key_);
  }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from, std::size_t source) const noexcept {
    Partial value;
    start(value, from, source);
    replace_where(partial, (Partial)(value > partial), value);
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept {
    result = partial ^ flip_;
    result = result ^ ((Partial)(result < Partial{}) & magnitude_);
    replace_where(result, (Partial)(partial == greatest_key_), greatest_);
  }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept { store(to, result); }

 private:
  static constexpr Lane greatest_key = std::numeric_limits<Lane>::max();

  Partial flip_, magnitude_, infinity_, greatest_, greatest_key_;
};

}  // namespace DTRAIN_NAMESPACE::kernels
