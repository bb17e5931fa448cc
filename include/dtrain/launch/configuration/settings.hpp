#pragma once
/// @file
/// Settings: parsers of the variables for timeouts, log level and secret.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <optional>
#include <string>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/net/poll_descriptor.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Defaults of DTRAIN_TIMEOUT_SECONDS and DTRAIN_LIVENESS_SECONDS.
inline constexpr std::chrono::seconds default_timeout{600};
inline constexpr std::chrono::seconds default_liveness{5};

/// A variable's seconds, which may have a fraction; `otherwise` if it is unset.
/// @throws Error (usage) for a value that is not a number from 0.001 to 10,000,000
inline std::chrono::nanoseconds seconds_setting(const identity::Variables& variables, const char* variable,
                                                std::chrono::nanoseconds otherwise) {
  const std::optional<std::string_view> value = variables.text(variable);
  if (!value) {
    return otherwise;
  }
  double seconds = 0;
  const char* const end = value->data() + value->size();
  const auto [stopped, error] = std::from_chars(value->data(), end, seconds, std::chars_format::fixed);
  if (error != std::errc{} || stopped != end || !(seconds >= 0.001 && seconds <= 1e7)) {
    throw_error(Errc::usage, "{} is not a number of seconds from 0.001 to 10000000; correct it or unset it",
                {identity::quoted(variable, *value)});
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
  const std::optional<std::string_view> value = variables.text("DTRAIN_LOG");
  if (value && !is_log_level(*value)) {
    throw_error(Errc::usage, "{} is no level; set it to off, error, warning, info or debug, or unset it",
                {identity::quoted("DTRAIN_LOG", *value)});
  }
}

namespace detail {

/// A file's text without the white space at its end; the file may be a pipe, which is read to its end.
/// Blocking: until the deadline. @throws Error (usage) if it cannot be read; Error (timeout)
inline std::string secret_in_file(const std::string& path,
                                  Deadline deadline = Deadline::after(std::chrono::seconds(10))) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  const std::string doing = format_text("reading the secret, {}", {identity::quoted("DTRAIN_SECRET_FILE", path)});
  std::array<char, rendezvous::Secret::most_characters + 2> text{};
  std::size_t length = 0;
  ssize_t count = file ? 1 : -1;
  while (count > 0 && length < text.size()) {
    net::wait_descriptor(file.get(), POLLIN, deadline, doing);
    count = ::read(file.get(), text.data() + length, text.size() - length);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) {
      count = 1;
      continue;
    }
    length += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  if (count < 0) {
    const std::string reason = std::system_category().message(errno);
    throw_error(Errc::usage, "{} cannot be read ({}); name a file that holds the job's secret",
                {identity::quoted("DTRAIN_SECRET_FILE", path), reason});
  }
  const std::string all(text.data(), length);
  return all.substr(0, all.find_last_not_of(" \t\r\n") + 1);
}

}  // namespace detail

/// The job's secret; nullopt if no variable is set. Blocking: reads the file.
/// @throws Error (usage) for a secret that is too short, a file that cannot be read, or both variables
inline std::optional<rendezvous::Secret> secret_setting(const identity::Variables& variables) {
  const std::optional<std::string_view> text = variables.text("DTRAIN_SECRET");
  const std::optional<std::string_view> file = variables.text("DTRAIN_SECRET_FILE");
  if (text && file) {
    throw_error(Errc::usage, "DTRAIN_SECRET and DTRAIN_SECRET_FILE are both set; unset one of them");
  }
  if (text) {
    return rendezvous::Secret::of(std::string(*text), "DTRAIN_SECRET");
  }
  if (file) {
    return rendezvous::Secret::of(detail::secret_in_file(std::string(*file)), "the file that DTRAIN_SECRET_FILE names");
  }
  return std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::launch
