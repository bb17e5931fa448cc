#pragma once
/// @file
/// Whether a sanitizer slows this program, so that its tests need more time.

#include "dtrain/core/config.hpp"

namespace support {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = DTRAIN_THREAD_SANITIZER != 0;
#endif

}  // namespace support
