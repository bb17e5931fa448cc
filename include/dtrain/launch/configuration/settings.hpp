#pragma once
/// @file
/// Settings: parsers of the variables for timeouts and the log level.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <string>

#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/identity/environment/variables.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Defaults of DTRAIN_TIMEOUT_SECONDS and DTRAIN_LIVENESS_SECONDS.
inline constexpr std::chrono::seconds default_timeout{600};
inline constexpr std::chrono::seconds default_liveness{5};

/// A variable's seconds, which may have a fraction; `otherwise` if it is unset.
/// @throws Error (usage) for a value that is not a number from 0.001 to 10,000,000
inline std::chrono::nanoseconds seconds_setting(const identity::Variables& variables, const char* variable,
                                                std::chrono::nanoseconds otherwise) {
  const std::optional<std::string> value = variables.text(variable);
  if (!value) {
    return otherwise;
  }
  double seconds = 0;
  const char* const end = value->data() + value->size();
  const auto [stopped, error] = std::from_chars(value->data(), end, seconds, std::chars_format::fixed);
  if (error != std::errc{} || stopped != end || !(seconds >= 0.001 && seconds <= 1e7)) {
    throw Error(Errc::usage, identity::quoted(variable, *value) +
                                 " is not a number of seconds from 0.001 to 10000000; correct it or unset it");
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

/// Rounds up to milliseconds; at most 100 years, so that sums with it do not overflow.
inline std::chrono::milliseconds in_milliseconds(std::chrono::nanoseconds time) {
  constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365 * 100);
  return std::chrono::ceil<std::chrono::milliseconds>(std::min(time, longest));
}

/// @throws Error (usage) if DTRAIN_LOG is set and is no log level
inline void check_log_setting(const identity::Variables& variables) {
  const std::optional<std::string> value = variables.text("DTRAIN_LOG");
  if (value && !is_log_level(*value)) {
    throw Error(Errc::usage, identity::quoted("DTRAIN_LOG", *value) +
                                 " is no level; set it to off, error, warning, info or debug, or unset it");
  }
}

}  // namespace DTRAIN_NAMESPACE::launch
