#pragma once
/// @file
/// log(): dtrain's messages to its user, lines on stderr at the levels of DTRAIN_LOG; a full stderr drops them.

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
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

/// Writes "dtrain: text\n" to stderr if `level` is enabled. A full or closed stderr is not an error of the job: what
/// stderr does not take is dropped. Blocking: at most 100 ms for each page of the line, while stderr is full; not at
/// all if the last write was dropped. Reason: event loops log, and the store takes a rank whose loop blocks for lost.
/// Threads: any.
void log(LogLevel level, std::string_view text);

#if DTRAIN_DEFINITIONS

namespace detail {

/// Whether stderr takes PIPE_BUF bytes now, or is no descriptor that can say so. Blocking: see log().
inline bool stderr_has_room() {
  static std::atomic<bool> was_full{false};
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(was_full.load() ? 0 : 100));
  pollfd entry{STDERR_FILENO, POLLOUT, 0};
  int ready = -1;
  do {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    ready = ::poll(&entry, 1, static_cast<int>(left.count()));
  } while (ready < 0 && errno == EINTR);
  was_full.store(ready == 0);
  return ready != 0;
}

}  // namespace detail

DTRAIN_DEFINED void log(LogLevel level, std::string_view text) {
  static const LogLevel wanted = log_level_of(std::getenv("DTRAIN_LOG"));
  if (level > wanted || level == LogLevel::off) {
    return;
  }
  std::string line = "dtrain: ";
  line.append(text).push_back('\n');
  const BlockedWriteSignals no_signal;
  for (std::size_t begin = 0; begin < line.size() && detail::stderr_has_room(); begin += PIPE_BUF) {
    const std::size_t bytes = std::min<std::size_t>(line.size() - begin, PIPE_BUF);
    const ssize_t written = ::write(STDERR_FILENO, line.data() + begin, bytes);
    static_cast<void>(written);
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE
