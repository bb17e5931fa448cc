#pragma once
/// @file
/// Isa: the vector instruction set of a kernel; all give equal bits. best_isa(): this machine's fastest.

#include <cstdint>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// In ascending order: a processor that supports a set supports all sets before it. All sets give the same bits.
enum class Isa : std::uint8_t {
  baseline,  ///< generic vector code for every processor that can run the program
  avx2,      ///< AVX2 and F16C
};

constexpr const char* name(Isa isa) noexcept {
  switch (isa) {
    case Isa::baseline: return "baseline";
    case Isa::avx2: return "avx2";
  }
  return "unknown instructions";
}

#if DTRAIN_X86_64
/// Registers that `cpuid` returns.
struct CpuidResult {
  std::uint32_t a, b, c, d;
};

inline CpuidResult read_cpuid(std::uint32_t leaf) noexcept {
  CpuidResult result{leaf, 0, 0, 0};
  asm volatile("cpuid" : "+a"(result.a), "=b"(result.b), "+c"(result.c), "=d"(result.d));
  return result;
}

/// The register sets that the operating system saves on a thread switch (XCR0). Valid only with OSXSAVE.
inline std::uint32_t registers_saved_by_system() noexcept {
  std::uint32_t low = 0;
  asm volatile("xgetbv" : "=a"(low) : "c"(0) : "edx");
  return low;
}

/// Source of the bits: Intel's Software Developer's Manual, volume 2, CPUID; volume 1, chapter 13 (XCR0).
inline Isa isa_of_processor() noexcept {
  if (read_cpuid(0).a < 7) {
    return Isa::baseline;
  }
  const auto all = [](std::uint32_t word, std::uint32_t bits) { return (word & bits) == bits; };
  constexpr std::uint32_t osxsave_avx_f16c = 1U << 27 | 1U << 28 | 1U << 29;
  const CpuidResult features = read_cpuid(1);
  const CpuidResult extended = read_cpuid(7);
  constexpr std::uint32_t ymm = 1U << 1 | 1U << 2;
  constexpr std::uint32_t avx2 = 1U << 5;
  return all(features.c, osxsave_avx_f16c) && all(registers_saved_by_system(), ymm) && all(extended.b, avx2)
             ? Isa::avx2
             : Isa::baseline;
}
#else
inline Isa isa_of_processor() noexcept {
  return Isa::baseline;
}
#endif

/// The fastest that this machine supports. Queried once, because in a virtual machine `cpuid` takes microseconds.
inline Isa best_isa() noexcept {
  static const Isa best = isa_of_processor();
  return best;
}

inline bool runs_on_this_machine(Isa isa) noexcept {
  return isa <= best_isa();
}

}  // namespace DTRAIN_NAMESPACE::kernels
