#pragma once
/// @file
/// Settings of a launcher or rank: strict parsers of timeouts, log level and secret.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Defaults of DTRAIN_TIMEOUT_SECONDS and DTRAIN_LIVENESS_SECONDS.
inline constexpr std::chrono::seconds default_timeout{600};
inline constexpr std::chrono::seconds default_liveness{5};

/// "12", "0.25", ".5": decimal digits with at most one point, in every locale; nullopt for any other text, and beyond
/// 10,000,000 seconds. Digits below a nanosecond are dropped. libc++ has no std::from_chars(double) before version 20.
inline std::optional<std::chrono::nanoseconds> decimal_seconds(std::string_view text) noexcept {
  constexpr std::int64_t per_second = 1'000'000'000;
  constexpr std::int64_t most = 10'000'000 * per_second;
  std::int64_t total = 0;
  std::int64_t unit = 0;  // nanoseconds of the next digit after the point; 0 before the point
  bool has_point = false;
  bool has_digit = false;
  for (const char character : text) {
    if (character == '.' && !has_point) {
      has_point = true;
      unit = per_second / 10;
      continue;
    }
    if (character < '0' || character > '9') {
      return std::nullopt;
    }
    has_digit = true;
    const std::int64_t digit = character - '0';
    total = has_point ? total + digit * unit : total * 10 + digit * per_second;
    unit /= 10;
    if (total > most) {
      return std::nullopt;
    }
  }
  return has_digit ? std::optional(std::chrono::nanoseconds(total)) : std::nullopt;
}

/// A variable's seconds, which may have a fraction; `otherwise` if it is unset.
/// @throws Error (usage) for a value that is not a number from 0.001 to 10,000,000
inline std::chrono::nanoseconds seconds_setting(const identity::Variables& variables, const char* variable,
                                                std::chrono::nanoseconds otherwise) {
  const std::optional<std::string_view> value = variables.text(variable);
  if (!value) {
    return otherwise;
  }
  const std::optional<std::chrono::nanoseconds> seconds = decimal_seconds(*value);
  if (!seconds || *seconds < std::chrono::milliseconds(1)) {
    throw_error(Errc::usage, "{} is not a number of seconds from 0.001 to 10000000; correct it or unset it",
                {identity::quoted(variable, *value)});
  }
  return *seconds;
}

/// DTRAIN_STRAGGLER_FACTOR, or its default. @throws Error (usage) for a value that is neither 0 nor from 1.01 to 1000
inline double straggler_factor_setting(const identity::Variables& variables) {
  const std::optional<std::string_view> value = variables.text("DTRAIN_STRAGGLER_FACTOR");
  if (!value) return rendezvous::Limits().straggler_factor;
  const std::optional<std::chrono::nanoseconds> number = decimal_seconds(*value);
  const double factor = number ? std::chrono::duration<double>(*number).count() : -1;
  if (factor != 0 && (factor < 1.01 || factor > 1000)) {
    throw_error(Errc::usage, "{} is neither 0 nor a number from 1.01 to 1000; correct it or unset it",
                {identity::quoted("DTRAIN_STRAGGLER_FACTOR", *value)});
  }
  return factor;
}

/// Rounds up to milliseconds; at most 100 years, so that sums with it do not overflow.
inline std::chrono::milliseconds in_milliseconds(std::chrono::nanoseconds time) {
  constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365 * 100);
  return std::chrono::ceil<std::chrono::milliseconds>(std::min(time, longest));
}

/// @throws Error (usage) if DTRAIN_LOG is set and is no log level
inline void check_log_setting(const identity::Variables& variables) {
  const std::optional<std::string_view> value = variables.text("DTRAIN_LOG");
  if (value && !log_level_named(*value)) {
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
    wait_descriptor(file.get(), POLLIN, deadline, doing);
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
