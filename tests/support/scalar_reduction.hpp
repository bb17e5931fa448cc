#pragma once
// What a reduction of host memory is to give, bit by bit: element after element, from dtrain's documentation alone.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"

namespace support {

/// Bits of a floating-point element and the type it is accumulated in.
template <class Float, class Unsigned, Unsigned canonical_nan, int digit_bits>
struct Whole {
  using Bits = Unsigned;
  using Value = Float;
  static constexpr Bits nan = canonical_nan;
  static constexpr int digits = digit_bits;
  static Value value(Bits bits) { return std::bit_cast<Value>(bits); }
  static Bits bits(Value value) { return std::bit_cast<Bits>(value); }
};
using F64 = Whole<double, std::uint64_t, 0x7ff8000000000000, 52>;
using F32 = Whole<float, std::uint32_t, 0x7fc00000, 23>;

/// A sign, `exponent_bits`, `digit_bits`: through powers of two in double, where every step is exact.
template <int exponent_bits, int digit_bits, std::uint16_t canonical_nan>
struct Half {
  using Bits = std::uint16_t;
  using Value = float;
  static constexpr Bits nan = canonical_nan;
  static constexpr int digits = digit_bits;
  static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  static constexpr int infinite_exponent = (1 << exponent_bits) - 1;

  static Value value(Bits bits) {
    const int exponent = bits >> digit_bits & infinite_exponent;
    const int fraction = bits & ((1 << digit_bits) - 1);
    double magnitude = 0;
    if (exponent == infinite_exponent) {
      magnitude = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
      magnitude = std::ldexp(fraction, 1 - bias - digit_bits);
    } else {
      magnitude = std::ldexp(fraction + (1 << digit_bits), exponent - bias - digit_bits);
    }
    return static_cast<Value>((bits & 0x8000) != 0 ? -magnitude : magnitude);
  }

  static Bits bits(Value value) {
    const unsigned sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(static_cast<double>(value));
    int exponent = magnitude == 0 || std::isinf(magnitude) ? 1 - bias : std::ilogb(magnitude);
    exponent = exponent < 1 - bias ? 1 - bias : exponent;
    // In units of the last digit; the default rounding is to nearest even.
    const double units = std::nearbyint(std::ldexp(magnitude, digit_bits - exponent));
    const double rounded = std::ldexp(units, exponent - digit_bits);
    if (rounded >= std::ldexp(1, bias + 1)) {
      return static_cast<Bits>(sign | static_cast<unsigned>(infinite_exponent) << digit_bits);
    }
    // A subnormal has exponent 0 and no implicit one; where rounding carried, the digits' carry raises the exponent.
    const unsigned whole = static_cast<unsigned>(units) + (static_cast<unsigned>(exponent + bias - 1) << digit_bits);
    return static_cast<Bits>(sign | whole);
  }
};
using F16 = Half<5, 10, 0x7e00>;
using Bf16 = Half<8, 7, 0x7fc0>;

template <class Format>
typename Format::Bits reduce_float(dtrain::ReduceOp op, const std::vector<typename Format::Bits>& ranks,
                                   std::size_t divisor) {
  using Value = typename Format::Value;
  bool nan = false;
  Value result = Format::value(ranks[0]);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Value value = Format::value(ranks[rank]);
    nan = nan || std::isnan(value);
    if (rank == 0) continue;
    switch (op) {
      case dtrain::ReduceOp::sum:
      case dtrain::ReduceOp::average: result = result + value; break;
      case dtrain::ReduceOp::product: result = result * value; break;
      case dtrain::ReduceOp::min:
        result = value < result || (value == result && std::signbit(value)) ? value : result;
        break;
      case dtrain::ReduceOp::max:
        result = value > result || (value == result && std::signbit(result)) ? value : result;
        break;
    }
  }
  if (op == dtrain::ReduceOp::average) {
    const auto factor = static_cast<Value>(1.0 / static_cast<double>(divisor));
    result = result * factor;
    if (!std::isfinite(result)) {  // an average of finite values is finite
      result = Format::value(ranks[0]) * factor;
      for (std::size_t rank = 1; rank < ranks.size(); ++rank)
        result = result + Format::value(ranks[rank]) * factor;
    }
  }
  return nan || std::isnan(result) ? Format::nan : Format::bits(result);
}

template <class T>
T reduce_integer(dtrain::ReduceOp op, const std::vector<T>& ranks, std::size_t divisor) {
  __extension__ typedef __int128 Wide;
  Wide sum = 0;
  std::uint64_t product = 1;
  T least = ranks[0];
  T greatest = ranks[0];
  for (const T value : ranks) {
    sum += value;
    product *= static_cast<std::uint64_t>(value);
    least = value < least ? value : least;
    greatest = value > greatest ? value : greatest;
  }
  switch (op) {
    case dtrain::ReduceOp::sum: return static_cast<T>(sum);
    case dtrain::ReduceOp::average: return static_cast<T>(sum / static_cast<Wide>(divisor));
    case dtrain::ReduceOp::product: return static_cast<T>(product);
    case dtrain::ReduceOp::min: return least;
    case dtrain::ReduceOp::max: return greatest;
  }
  return least;
}

/// `visit(Format())` of a float, `visit(T())` of an integer.
template <class Visit>
void with_element(dtrain::DType dtype, Visit visit) {
  switch (dtype) {
    case dtrain::DType::f64: return visit(F64());
    case dtrain::DType::f32: return visit(F32());
    case dtrain::DType::f16: return visit(F16());
    case dtrain::DType::bf16: return visit(Bf16());
    case dtrain::DType::i64: return visit(std::int64_t());
    case dtrain::DType::i32: return visit(std::int32_t());
    case dtrain::DType::u8: return visit(std::uint8_t());
    case dtrain::DType::u32: return visit(std::uint32_t());
    case dtrain::DType::u64: return visit(std::uint64_t());
    case dtrain::DType::f8e4m3:
    case dtrain::DType::f8e5m2: break;  // they are not reduced on the host
  }
}

template <class Element>
concept FloatFormat = requires {
  typename Element::Bits;
};
template <class Element>
struct BitsOf {
  using type = Element;
};
template <FloatFormat Element>
struct BitsOf<Element> {
  using type = typename Element::Bits;
};

/// Element by element over `ranks[rank]`, which are all equally long: what `reduce(element, bits of each rank)` gives.
template <class Reduce>
std::vector<std::byte> reduce_elements(dtrain::DType dtype, const std::vector<std::vector<std::byte>>& ranks,
                                       Reduce reduce) {
  std::vector<std::byte> result(ranks[0].size());
  with_element(dtype, [&]<class Element>(Element element) {
    using Bits = typename BitsOf<Element>::type;
    std::vector<Bits> values(ranks.size());
    for (std::size_t i = 0; i < result.size(); i += sizeof(Bits)) {
      for (std::size_t rank = 0; rank < ranks.size(); ++rank)
        std::memcpy(&values[rank], ranks[rank].data() + i, sizeof(Bits));
      const Bits reduced = reduce(element, values);
      std::memcpy(result.data() + i, &reduced, sizeof(Bits));
    }
  });
  return result;
}

/// An average divides by `divisor`, or where that is 0 by the number of ranks; then one rank is copied.
inline std::vector<std::byte> scalar_reduction(dtrain::DType dtype, dtrain::ReduceOp op,
                                               const std::vector<std::vector<std::byte>>& ranks,
                                               std::size_t divisor = 0) {
  const bool copied = ranks.size() == 1 && (divisor == 0 || op != dtrain::ReduceOp::average);
  const std::size_t divides = divisor == 0 ? ranks.size() : divisor;
  return reduce_elements(dtype, ranks, [&]<class Element, class Bits>(Element, const std::vector<Bits>& values) {
    if (copied) return values[0];
    if constexpr (FloatFormat<Element>) {
      return reduce_float<Element>(op, values, divides);
    } else {
      return reduce_integer(op, values, divides);
    }
  });
}

}  // namespace support
