#pragma once
/// @file
/// duration_text(): durations as text, for messages.

#include <chrono>
#include <string>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/text/number_text.hpp"

namespace DTRAIN_NAMESPACE {

/// "0.3 s", "600.0 s".
inline std::string duration_text(Deadline::Clock::duration time) {
  return fixed_text(std::chrono::duration<double>(time).count(), 1) + " s";
}

}  // namespace DTRAIN_NAMESPACE
