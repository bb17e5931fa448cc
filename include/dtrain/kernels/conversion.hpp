#pragma once
/// @file
/// convert(), a kernel: 16-bit floats to f32, i32, u32 and u8 to i64, and back.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/kernels/arithmetic/arithmetic.hpp"
#include "dtrain/kernels/arithmetic/half_arithmetic.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/vector.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// Calls `convert_step(target, source)` for `step` elements at a time, the last ones padded.
/// @tparam to_bytes,from_bytes of an element
template <std::size_t step, std::size_t to_bytes, std::size_t from_bytes, class ConvertStep>
DTRAIN_ALWAYS_INLINE void convert_in_steps(std::byte* to, const std::byte* from, std::size_t count,
                                           ConvertStep convert_step) noexcept {
  const std::size_t left = count % step;  // a remainder, since g++ 14 does not see that count - i is less than step
  const std::size_t whole = count - left;
  for (std::size_t i = 0; i < whole; i += step) {
    convert_step(to + to_bytes * i, from + from_bytes * i);
  }
  if (left > 0) {
    std::byte rest[4 * step] = {};
    std::memcpy(rest, from + from_bytes * whole, from_bytes * left);
    convert_step(rest, rest);
    std::memcpy(to + to_bytes * whole, rest, to_bytes * left);
  }
}

/// Widens 16-bit floats. `Format` has 16 bytes: Bf16Words, F16Words.
template <class Format>
DTRAIN_OPTIMIZED void widen_halves(std::byte* to, const std::byte* from, std::size_t count) noexcept {
  constexpr std::size_t step = sizeof(typename Format::Floats) / sizeof(float);
  convert_in_steps<step, 4, 2>(to, from, count, [](std::byte* target, const std::byte* source) {
    Vector<std::uint16_t, 2 * step> halves;
    load(halves, source);
    typename Format::Floats floats;
    Format::widen(floats, __builtin_convertvector(halves, typename Format::Packed));
    store(target, floats);
  });
}

/// Rounds to nearest even; every NaN becomes the canonical one.
template <class Format>
DTRAIN_OPTIMIZED void narrow_floats(std::byte* to, const std::byte* from, std::size_t count) noexcept {
  constexpr std::size_t step = sizeof(typename Format::Floats) / sizeof(float);
  convert_in_steps<step, 2, 4>(to, from, count, [](std::byte* target, const std::byte* source) {
    typename Format::Floats floats;
    load(floats, source);
    make_nan_canonical<float, sizeof(floats)>(floats);
    typename Format::Packed words;
    Format::narrow(words, floats);
    const auto halves = __builtin_convertvector(words, Vector<std::uint16_t, 2 * step>);
    store(target, halves);
  });
}

template <class To, class From>
DTRAIN_OPTIMIZED void convert_integers(std::byte* to, const std::byte* from, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof(From), sizeof(From));
    const auto converted = static_cast<To>(value);
    std::memcpy(to + i * sizeof(To), &converted, sizeof(To));
  }
}

/// Converts `count` elements at any alignment.
/// - f16 and bf16 to f32, i32, u32 and u8 to i64: exact.
/// - f32 to f16 and bf16: rounded to nearest even. i64 to i32, u32 and u8: modulo 2^bits.
/// - Equal types: copied. No other pair is allowed.
/// Requires: `to` and `from` are disjoint; the floating-point environment is the default one.
void convert(DType from_type, const std::byte* from, DType to_type, std::byte* to, std::size_t count) noexcept;

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void convert(DType from_type, const std::byte* from, DType to_type, std::byte* to,
                            std::size_t count) noexcept {
  if (from_type == to_type) {
    copy_bytes(to, from, count * size_bytes(to_type));
  } else if (from_type == DType::f16) {
    widen_halves<F16Words<16>>(to, from, count);
  } else if (from_type == DType::bf16) {
    widen_halves<Bf16Words<16>>(to, from, count);
  } else if (from_type == DType::i32) {
    convert_integers<std::int64_t, std::int32_t>(to, from, count);
  } else if (from_type == DType::u32) {
    convert_integers<std::int64_t, std::uint32_t>(to, from, count);
  } else if (from_type == DType::u8) {
    convert_integers<std::int64_t, std::uint8_t>(to, from, count);
  } else if (to_type == DType::f16) {
    narrow_floats<F16Words<16>>(to, from, count);
  } else if (to_type == DType::bf16) {
    narrow_floats<Bf16Words<16>>(to, from, count);
  } else if (to_type == DType::i32 || to_type == DType::u32) {
    convert_integers<std::int32_t, std::int64_t>(to, from, count);
  } else {
    convert_integers<std::uint8_t, std::int64_t>(to, from, count);
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::kernels
