#pragma once
/// @file
/// f16 conversion by the processor's instructions: F16C.

#include <cstddef>
#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/kernels/arithmetic/arithmetic.hpp"
#include "dtrain/kernels/vector.hpp"

namespace DTRAIN_NAMESPACE::kernels {

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
