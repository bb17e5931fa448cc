#pragma once
/// @file
/// DefaultFloatEnvironment: IEEE 754 rounding and subnormals for a kernel's scope, whatever the program has set.

#include <cstdint>

#include "dtrain/core/config.hpp"

#if !DTRAIN_X86_64 && !DTRAIN_ARM64
#include <cfenv>
#endif

namespace DTRAIN_NAMESPACE::kernels {

/// Needed because a program linked with -ffast-math starts with subnormals flushed to zero (crtfastmath.o), and a user
/// may have set another rounding or traps. Does not write the environment if it is the default one; exception flags may
/// be raised, as by any arithmetic.
class DefaultFloatEnvironment {
 public:
#if DTRAIN_X86_64
  DefaultFloatEnvironment() noexcept {
    asm volatile("stmxcsr %0" : "=m"(saved_)::"memory");
    set_ = (saved_ & ~recorded_exceptions) != standard;
    if (set_) {
      const std::uint32_t value = standard;
      asm volatile("ldmxcsr %0" ::"m"(value) : "memory");
    }
  }
  ~DefaultFloatEnvironment() {
    if (set_) {
      asm volatile("ldmxcsr %0" ::"m"(saved_) : "memory");
    }
  }
#elif DTRAIN_ARM64
  DefaultFloatEnvironment() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(saved_)::"memory");
    set_ = saved_ != standard;
    if (set_) {
      asm volatile("msr fpcr, %0" ::"r"(standard) : "memory");
    }
  }
  ~DefaultFloatEnvironment() {
    if (set_) {
      asm volatile("msr fpcr, %0" ::"r"(saved_) : "memory");
    }
  }
#else
  DefaultFloatEnvironment() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() {
    std::fesetenv(&saved_);
  }
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if DTRAIN_X86_64
  static constexpr std::uint32_t standard = 0x1f80;  // all exceptions masked, to nearest, subnormals kept
  static constexpr std::uint32_t recorded_exceptions = 0x3f;
  std::uint32_t saved_ = 0;
  bool set_ = false;
#elif DTRAIN_ARM64
  static constexpr std::uint64_t standard = 0;
  std::uint64_t saved_ = 0;
  bool set_ = false;
#else
  std::fenv_t saved_{};
#endif
};

}  // namespace DTRAIN_NAMESPACE::kernels
