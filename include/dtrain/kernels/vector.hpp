#pragma once
/// @file
/// Vector: the kernels' SIMD vectors of any width, by the compiler's vector extension.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::kernels {

template <class Lane, std::size_t Width>
struct VectorOf {
  typedef Lane type __attribute__((vector_size(Width)));
};

/// `Width` bytes of lanes. Always passed by reference: by value, a wide vector's ABI depends on the target.
template <class Lane, std::size_t Width>
using Vector = typename VectorOf<Lane, Width>::type;

/// At any alignment.
template <class V>
DTRAIN_ALWAYS_INLINE void load(V& to, const std::byte* from) noexcept {
  std::memcpy(&to, from, sizeof(V));
}

template <class V>
DTRAIN_ALWAYS_INLINE void store(std::byte* to, const V& from) noexcept {
  std::memcpy(to, &from, sizeof(V));
}

/// Replaces lanes by those of `chosen` where the mask's lane is all ones. Integer lanes only.
template <class V>
DTRAIN_ALWAYS_INLINE void replace_where(V& value, const V& mask, const V& chosen) noexcept {
  value = (value & ~mask) | (chosen & mask);
}

/// The same value in every lane.
template <class Lane, std::size_t Width>
DTRAIN_ALWAYS_INLINE void fill(Vector<Lane, Width>& to, Lane value) noexcept {
  to = Vector<Lane, Width>{} + value;
}

/// The square root of each lane, rounded to nearest. By asm, because the compiler's square root of one float may set
/// errno, which keeps loops from being vectorized.
/// @{
DTRAIN_ALWAYS_INLINE void take_square_roots(Vector<float, 16>& lanes) noexcept {
#if defined(__AVX__)
  asm("vsqrtps %0, %0" : "+x"(lanes));
#elif defined(__x86_64__)
  asm("sqrtps %0, %0" : "+x"(lanes));
#else
  for (int lane = 0; lane < 4; ++lane) {
    lanes[lane] = __builtin_sqrtf(lanes[lane]);
  }
#endif
}

DTRAIN_ALWAYS_INLINE void take_square_roots(Vector<double, 16>& lanes) noexcept {
#if defined(__AVX__)
  asm("vsqrtpd %0, %0" : "+x"(lanes));
#elif defined(__x86_64__)
  asm("sqrtpd %0, %0" : "+x"(lanes));
#else
  for (int lane = 0; lane < 2; ++lane) {
    lanes[lane] = __builtin_sqrt(lanes[lane]);
  }
#endif
}
/// @}

/// The integer type as wide as a floating-point lane, and bit patterns of the lane.
template <class Float>
struct BitsOf;
template <>
struct BitsOf<float> {
  using Lane = std::int32_t;
  static constexpr Lane magnitude = 0x7fffffff;
  static constexpr Lane infinity = 0x7f800000;
  static constexpr Lane nan = 0x7fc00000;
};
template <>
struct BitsOf<double> {
  using Lane = std::int64_t;
  static constexpr Lane magnitude = 0x7fffffffffffffff;
  static constexpr Lane infinity = 0x7ff0000000000000;
  static constexpr Lane nan = 0x7ff8000000000000;
};

}  // namespace DTRAIN_NAMESPACE::kernels
