#pragma once
/// @file
/// duration_text(): durations as text, for messages.

#include <chrono>
#include <cstdio>
#include <string>

#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE {

/// "0.3 s", "600.0 s".
inline std::string duration_text(Deadline::Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace DTRAIN_NAMESPACE
