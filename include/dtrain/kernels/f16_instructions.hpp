#pragma once
/// @file
/// f16 through the processor's own conversions.

#include <cstddef>
#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/kernels/vector.hpp"

namespace DTRAIN_NAMESPACE::kernels {

#if DTRAIN_X86_64
/// One vector of halves becomes one of twice its width. An asm and not an intrinsic: <immintrin.h> costs every user
/// compile time. The immediate 0 rounds to nearest even whatever MXCSR says; subnormals are exact both ways.
struct F16c {
  static constexpr std::size_t width = 32;
  using Floats = Vector<float, width>;
  using Halves = Vector<std::uint16_t, width / 2>;
  DTRAIN_TARGET_HELPER("avx2,f16c") static void widen(Floats& to, const Halves& from) noexcept {
    asm("vcvtph2ps %1, %0" : "=x"(to) : "x"(from));
  }
  DTRAIN_TARGET_HELPER("avx2,f16c") static void narrow(Halves& to, const Floats& from) noexcept {
    asm("vcvtps2ph $0, %1, %0" : "=x"(to) : "x"(from));
  }
};

struct F16Avx512 {
  static constexpr std::size_t width = 64;
  using Floats = Vector<float, width>;
  using Halves = Vector<std::uint16_t, width / 2>;
  DTRAIN_TARGET_HELPER("avx512f") static void widen(Floats& to, const Halves& from) noexcept {
    asm("vcvtph2ps %1, %0" : "=v"(to) : "v"(from));
  }
  DTRAIN_TARGET_HELPER("avx512f") static void narrow(Halves& to, const Floats& from) noexcept {
    asm("vcvtps2ph $0, %1, %0" : "=v"(to) : "v"(from));
  }
};

/// A format for HalfArithmetic.
template <class Instructions>
struct F16Native {
  static constexpr std::size_t bytes = Instructions::width;
  using Floats = typename Instructions::Floats;
  using Halves = typename Instructions::Halves;
  struct Packed {
    Halves first, second;
  };

  DTRAIN_ALWAYS_INLINE static void widen(Floats& first, Floats& second, const std::byte* from) noexcept {
    Halves halves;
    load(halves, from);
    Instructions::widen(first, halves);
    load(halves, from + bytes / 2);
    Instructions::widen(second, halves);
  }
  DTRAIN_ALWAYS_INLINE static void narrow(Packed& packed, const Floats& first, const Floats& second) noexcept {
    Instructions::narrow(packed.first, first);
    Instructions::narrow(packed.second, second);
  }
  DTRAIN_ALWAYS_INLINE static void put(std::byte* to, const Packed& packed) noexcept {
    store(to, packed.first);
    store(to + bytes / 2, packed.second);
  }
};
#endif

}  // namespace DTRAIN_NAMESPACE::kernels
