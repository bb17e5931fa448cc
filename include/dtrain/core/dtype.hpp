#pragma once
/// @file
/// The element types that gradients and collectives come in.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

enum class DType : std::uint8_t { f64 = 1, f32, f16, bf16, i64, i32, u8 };

constexpr std::size_t size_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

constexpr const char* name(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
  }
  return "unknown dtype";
}

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

/// A C++ type that dtrain knows the DType of.
template <class T>
concept Element = requires {
  dtype_of<T>::value;
};

}  // namespace DTRAIN_NAMESPACE
