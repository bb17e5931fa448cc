#pragma once
/// @file
/// log(): lines to stderr, each in one write, at the levels that DTRAIN_LOG selects.

#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// Each level includes those before it.
enum class LogLevel : int { off = 0, error, warning, info, debug };

/// The level that DTRAIN_LOG names; warning if it is unset or invalid.
inline LogLevel log_level_of(const char* text) noexcept {
  const std::string_view name = text == nullptr ? "" : text;
  if (name == "off") return LogLevel::off;
  if (name == "error") return LogLevel::error;
  if (name == "info") return LogLevel::info;
  if (name == "debug") return LogLevel::debug;
  return LogLevel::warning;
}

/// Whether `name` is a valid value of DTRAIN_LOG.
inline bool is_log_level(std::string_view name) noexcept {
  return name == "off" || name == "error" || name == "warning" || name == "info" || name == "debug";
}

/// Writes "dtrain: text\n" to stderr if `level` is enabled. A full or closed stderr is not an error of the job.
void log(LogLevel level, std::string_view text);

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "dtrain/core/process/blocked_write_signals.hpp"

namespace DTRAIN_NAMESPACE {

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

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
