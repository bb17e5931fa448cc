#pragma once
/// @file
/// Numbers in JSON.

#include <cmath>
#include <cstdio>
#include <string>

namespace shared {

/// As many digits as a double needs to be read back the same; null for what JSON cannot say.
inline std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

}  // namespace shared
