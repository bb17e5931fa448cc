#pragma once
/// @file
/// f16 conversion by the processor's instructions: F16C and AVX-512.

#include <cstddef>
#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/kernels/arithmetic/arithmetic.hpp"
#include "dtrain/kernels/vector.hpp"

namespace DTRAIN_NAMESPACE::kernels {

#if DTRAIN_X86_64
/// Converts a vector of f16 to two vectors of f32 of the same width, and back. An asm and not an intrinsic, because
/// <immintrin.h> costs every user compile time. The immediate 0 rounds to nearest even whatever MXCSR says; subnormals
/// are exact both ways. The operand is in memory, because a separate load costs as much as the conversion.
/// (ThreadSanitizer does not see these reads; it sees the stores, and those of all other kernels.)
struct F16c {
  static constexpr std::size_t width = 32;
  using Floats = Vector<float, width>;
  using Half = Vector<std::uint16_t, width / 2>;
  using Packed = Vector<std::uint16_t, width>;
  DTRAIN_TARGET_HELPER("avx2,f16c") static void widen(Floats& to, const std::byte* from) noexcept {
    asm("{vcvtph2ps %1, %0|vcvtph2ps %0, %1}" : "=x"(to) : "m"(*reinterpret_cast<const std::byte(*)[16]>(from)));
  }
  DTRAIN_TARGET_HELPER("avx2,f16c")
  static void narrow(Packed& to, const Floats& first, const Floats& second) noexcept {
    [[maybe_unused]] Half upper;
    asm("{vcvtps2ph $0, %2, %x0|vcvtps2ph %x0, %2, 0}\n\t"
        "{vcvtps2ph $0, %3, %1|vcvtps2ph %1, %3, 0}\n\t"
        "{vinserti128 $1, %1, %0, %0|vinserti128 %0, %0, %1, 1}"
        : "=&x"(to), "=&x"(upper)
        : "x"(first), "x"(second));
  }
};

/// F16c with twice the lanes.
struct F16Avx512 {
  static constexpr std::size_t width = 64;
  using Floats = Vector<float, width>;
  using Half = Vector<std::uint16_t, width / 2>;
  using Packed = Vector<std::uint16_t, width>;
  DTRAIN_TARGET_HELPER("avx512f") static void widen(Floats& to, const std::byte* from) noexcept {
    asm("{vcvtph2ps %1, %0|vcvtph2ps %0, %1}" : "=v"(to) : "m"(*reinterpret_cast<const std::byte(*)[32]>(from)));
  }
  DTRAIN_TARGET_HELPER("avx512f")
  static void narrow(Packed& to, const Floats& first, const Floats& second) noexcept {
    [[maybe_unused]] Half upper;
    asm("{vcvtps2ph $0, %2, %t0|vcvtps2ph %t0, %2, 0}\n\t"
        "{vcvtps2ph $0, %3, %1|vcvtps2ph %1, %3, 0}\n\t"
        "{vinserti64x4 $1, %1, %0, %0|vinserti64x4 %0, %0, %1, 1}"
        : "=&v"(to), "=&v"(upper)
        : "v"(first), "v"(second));
  }
};

/// A format for HalfArithmetic.
template <class Instructions>
struct F16Native {
  static constexpr std::size_t bytes = Instructions::width;
  using Floats = typename Instructions::Floats;
  using Packed = typename Instructions::Packed;

  DTRAIN_ALWAYS_INLINE static void widen(Floats& first, Floats& second, const std::byte* from) noexcept {
    Instructions::widen(first, from);
    Instructions::widen(second, from + bytes / 2);
  }
  DTRAIN_ALWAYS_INLINE static void narrow(Packed& packed, const Floats& first, const Floats& second) noexcept {
    Instructions::narrow(packed, first, second);
    make_halves_canonical<bytes>(packed, 0x7c00, 0x7e00);
  }
  DTRAIN_ALWAYS_INLINE static void put(std::byte* to, const Packed& packed) noexcept { store(to, packed); }
};
#endif

}  // namespace DTRAIN_NAMESPACE::kernels
