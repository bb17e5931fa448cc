#pragma once
/// @file
/// DType: the element types of gradients and collectives. dtype_of: the DType of a C++ type, which programs specialise.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// IEEE 754 floating point, of which bf16 is the upper half of an f32; two's complement and unsigned integers; the
/// 8-bit floats of the Open Compute Project (see small_floats.hpp). Messages between ranks contain the numbers, so they
/// never change.
/// @ingroup views
enum class DType : std::uint8_t { f64 = 1, f32, f16, bf16, i64, i32, u8, f8e4m3, f8e5m2, u32, u64 };

/// @name Bounds of the enumerators, for bytes from outside
/// @{
inline constexpr DType first_dtype = DType::f64;
inline constexpr DType last_dtype = DType::u64;
/// @}

/// Size of one element; 0 for a value that is no DType.
/// @ingroup views
constexpr std::size_t size_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
    case DType::u64: return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2: return 1;
  }
  return 0;
}

/// The name in messages: "f32".
/// @ingroup views
constexpr const char* name(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
    case DType::f8e4m3: return "f8e4m3";
    case DType::f8e5m2: return "f8e5m2";
    case DType::u32: return "u32";
    case DType::u64: return "u64";
  }
  return "unknown dtype";
}

/// Whether it is an 8-bit float. Every backend transfers these types and none reduces them: they have too few digits
/// for a sum or an average.
/// @ingroup views
constexpr bool is_float8(DType dtype) noexcept {
  return dtype == DType::f8e4m3 || dtype == DType::f8e5m2;
}

/// Whether it is a floating-point type that is reduced.
/// @ingroup views
constexpr bool is_float(DType dtype) noexcept {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

/// `dtype_of<T>::value` is the DType of a C++ type. Specialise it for your own type with the same bits as one of them,
/// for example another library's half (see dtrain/core/types/small_floats.hpp).
/// @ingroup views
template <class T>
struct dtype_of;
template <>
struct dtype_of<double> : std::integral_constant<DType, DType::f64> {};
template <>
struct dtype_of<float> : std::integral_constant<DType, DType::f32> {};
template <>
struct dtype_of<std::int64_t> : std::integral_constant<DType, DType::i64> {};
template <>
struct dtype_of<std::int32_t> : std::integral_constant<DType, DType::i32> {};
template <>
struct dtype_of<std::uint8_t> : std::integral_constant<DType, DType::u8> {};
template <>
struct dtype_of<std::uint32_t> : std::integral_constant<DType, DType::u32> {};
template <>
struct dtype_of<std::uint64_t> : std::integral_constant<DType, DType::u64> {};

namespace detail {
/// `long` and `long long` are two types, of which std::int64_t is one.
using OtherLong = std::conditional_t<std::is_same_v<std::int64_t, long>, long long, long>;
using OtherUnsignedLong = std::make_unsigned_t<OtherLong>;
}  // namespace detail
template <>
struct dtype_of<detail::OtherLong>
    : std::integral_constant<DType, sizeof(detail::OtherLong) == 8 ? DType::i64 : DType::i32> {};
template <>
struct dtype_of<detail::OtherUnsignedLong>
    : std::integral_constant<DType, sizeof(detail::OtherLong) == 8 ? DType::u64 : DType::u32> {};

/// A C++ type that has a DType.
/// @ingroup views
template <class T>
concept Element = requires {
  dtype_of<T>::value;
};

}  // namespace DTRAIN_NAMESPACE
