#pragma once
/// @file
/// float8_e4m3 and float8_e5m2 of the Open Compute Project, without arithmetic; the conversion from float rounds to
/// nearest even, the conversion to float is exact. A program moves such elements by broadcast, all_gather, send and
/// recv; no backend reduces them.

#include <cstdint>
#include <type_traits>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/float16.hpp"

namespace DTRAIN_NAMESPACE {

/// Four exponent bits, three digits, no infinity ("e4m3fn"): up to 448, in steps of 2^-9 near 0. A float is rounded to
/// nearest even, and saturates as with CUDA's type and NCCL: larger values and infinity become the largest finite one.
/// Every NaN becomes 0x7f. For programs without another such type; float16.hpp describes how to register one
/// (__nv_fp8_e4m3, c10::Float8_e4m3fn). Source: OCP 8-bit Floating Point Specification (OFP8), 1.0, 2023.
/// @ingroup views
using float8_e4m3 = detail::SmallFloat<std::uint8_t, 3, 0x7e, 0x7e, 0x7f>;

/// Five exponent bits, two digits, an infinity: up to 57344, in steps of 2^-16 near 0. Otherwise as float8_e4m3.
/// @ingroup views
using float8_e5m2 = detail::SmallFloat<std::uint8_t, 2, 0x7b, 0x7b, 0x7f>;

template <>
struct dtype_of<float8_e4m3> : std::integral_constant<DType, DType::f8e4m3> {};
template <>
struct dtype_of<float8_e5m2> : std::integral_constant<DType, DType::f8e5m2> {};

}  // namespace DTRAIN_NAMESPACE
