#pragma once
/// @file
/// square_root(): std::sqrt without <cmath>, for headers that programs compile.

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// Rounded to nearest, as IEEE 754 says. NaN for a negative number.
/// @{
inline float square_root(float value) noexcept {
  return __builtin_sqrtf(value);
}
inline double square_root(double value) noexcept {
  return __builtin_sqrt(value);
}
/// @}

}  // namespace DTRAIN_NAMESPACE::kernels
