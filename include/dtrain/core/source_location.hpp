#pragma once
/// @file
/// SourceLocation: a source position; clang 14 with libstdc++ 12 has no std::source_location.

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// As a default argument, `SourceLocation::current()` is the position of the call.
struct SourceLocation {
  constexpr SourceLocation() noexcept = default;  // no aggregate: a list of values for a text is never converted to it

  const char* file = "";
  const char* function = "";
  unsigned line = 0;

  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          const char* function = __builtin_FUNCTION(),
                                          unsigned line = __builtin_LINE()) noexcept {
    SourceLocation place;
    place.file = file;
    place.function = function;
    place.line = line;
    return place;
  }
};

}  // namespace DTRAIN_NAMESPACE
