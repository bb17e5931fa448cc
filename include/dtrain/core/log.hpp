#pragma once
/// @file
/// Lines to stderr, each in one write, from a level that DTRAIN_LOG sets.

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// Each level includes those before it.
enum class LogLevel : int { off = 0, error, warning, info, debug };

/// The level that DTRAIN_LOG names; warning where it is unset or names none.
inline LogLevel log_level_of(const char* text) noexcept {
  const std::string_view name = text == nullptr ? "" : text;
  if (name == "off") return LogLevel::off;
  if (name == "error") return LogLevel::error;
  if (name == "info") return LogLevel::info;
  if (name == "debug") return LogLevel::debug;
  return LogLevel::warning;
}

/// Whether `name` is a level: what DTRAIN_LOG may be set to.
inline bool is_log_level(std::string_view name) noexcept {
  return name == "off" || name == "error" || name == "warning" || name == "info" || name == "debug";
}

namespace detail {

/// While it lives, a write of this thread to a pipe that nobody reads, or to a file at its limit, fails without a
/// signal.
class QuietWrites {
 public:
  QuietWrites() noexcept {
    sigset_t pending;
    static_cast<void>(::sigpending(&pending));
    static_cast<void>(::sigemptyset(&added_));
    for (const int signal : {SIGPIPE, SIGXFSZ}) {
      if (::sigismember(&pending, signal) == 0) {
        static_cast<void>(::sigaddset(&added_, signal));
      }
    }
    static_cast<void>(::pthread_sigmask(SIG_BLOCK, &added_, &before_));
  }
  QuietWrites(const QuietWrites&) = delete;
  QuietWrites& operator=(const QuietWrites&) = delete;
  ~QuietWrites() {
    const timespec at_once{};
    while (::sigtimedwait(&added_, nullptr, &at_once) > 0) {
    }
    static_cast<void>(::pthread_sigmask(SIG_SETMASK, &before_, nullptr));
  }

 private:
  sigset_t added_{};
  sigset_t before_{};
};

}  // namespace detail

/// Writes "dtrain: text\n" to stderr if `level` is wanted. A full or closed stderr is not an error of the job.
inline void log(LogLevel level, std::string_view text) {
  static const LogLevel wanted = log_level_of(std::getenv("DTRAIN_LOG"));
  if (level > wanted || level == LogLevel::off) {
    return;
  }
  std::string line = "dtrain: ";
  line.append(text).push_back('\n');
  const detail::QuietWrites quiet;
  const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  static_cast<void>(written);
}

}  // namespace DTRAIN_NAMESPACE
