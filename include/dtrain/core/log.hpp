#pragma once
/// @file
/// log(): lines to stderr, each in one write, at the levels of DTRAIN_LOG. Launchers, ranks and the store call it.

#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/core/process/blocked_write_signals.hpp"

namespace DTRAIN_NAMESPACE {

/// Each level includes those before it.
enum class LogLevel : int { off = 0, error, warning, info, debug };

/// The level with this name; nullopt for other text.
inline std::optional<LogLevel> log_level_named(std::string_view name) noexcept {
  if (name == "off") return LogLevel::off;
  if (name == "error") return LogLevel::error;
  if (name == "warning") return LogLevel::warning;
  if (name == "info") return LogLevel::info;
  if (name == "debug") return LogLevel::debug;
  return std::nullopt;
}

/// The level that DTRAIN_LOG names; warning if it is unset or invalid.
inline LogLevel log_level_of(const char* text) noexcept {
  return log_level_named(text == nullptr ? "" : text).value_or(LogLevel::warning);
}

/// Writes "dtrain: text\n" to stderr if `level` is enabled. A full or closed stderr is not an error of the job.
void log(LogLevel level, std::string_view text);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void log(LogLevel level, std::string_view text) {
  static const LogLevel wanted = log_level_of(std::getenv("DTRAIN_LOG"));
  if (level > wanted || level == LogLevel::off) {
    return;
  }
  std::string line = "dtrain: ";
  line.append(text).push_back('\n');
  const BlockedWriteSignals no_signal;
  const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  static_cast<void>(written);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE
