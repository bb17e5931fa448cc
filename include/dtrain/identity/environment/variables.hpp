#pragma once
/// @file
/// Environment variables: typed, strict reads from a map.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/identity/identity_error.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// An environment: variables and their values.
using Environment = std::map<std::string, std::string, std::less<>>;

/// `NAME='value'` for messages.
inline std::string quoted(std::string_view variable, std::string_view value) {
  return format_text("{}={}", {variable, in_quotes(value, 64)});
}

/// A number in decimal digits, at most 2147483647; nullopt for other text.
inline std::optional<int> parse_integer(std::string_view text) noexcept {
  if (text.empty() || text.size() > 10) {
    return std::nullopt;
  }
  long long number = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') {
      return std::nullopt;
    }
    number = number * 10 + (digit - '0');
  }
  return number > 2147483647 ? std::nullopt : std::optional<int>(static_cast<int>(number));
}

/// A number of at most 18 decimal digits, for ids that only enter a formula; nullopt for other text.
inline std::optional<std::uint64_t> parse_wide_integer(std::string_view text) noexcept {
  if (text.empty() || text.size() > 18) {
    return std::nullopt;
  }
  std::uint64_t number = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') {
      return std::nullopt;
    }
    number = number * 10 + static_cast<std::uint64_t>(digit - '0');
  }
  return number;
}

/// 1..65535 in decimal digits; nullopt for other text.
inline std::optional<int> parse_port(std::string_view text) noexcept {
  const std::optional<int> number = parse_integer(text);
  return number && *number >= 1 && *number <= 65535 ? number : std::nullopt;
}

/// Reads an Environment. An empty value counts as unset, and the empty name names no variable. Lifetime: the
/// environment outlives it.
class Variables {
 public:
  explicit Variables(const Environment& environment) noexcept : environment_(&environment) {}

  std::optional<std::string> text(std::string_view variable) const {
    const auto found = variable.empty() ? environment_->end() : environment_->find(variable);
    return found == environment_->end() || found->second.empty() ? std::nullopt : std::optional(found->second);
  }

  bool has(std::string_view variable) const { return text(variable).has_value(); }

  /// nullopt if unset. @throws IdentityError (bad-integer) for a value that is not decimal digits, or above 2147483647
  std::optional<int> integer(std::string_view variable) const { return number(variable, parse_integer); }

  /// A number of up to 18 digits. @throws IdentityError (bad-integer)
  std::optional<std::uint64_t> wide_integer(std::string_view variable) const {
    return number(variable, parse_wide_integer);
  }

  /// An integer of at least 1. @throws IdentityError (bad-integer)
  std::optional<int> count(std::string_view variable) const {
    const std::optional<int> number = integer(variable);
    if (number && *number == 0) {
      throw_identity_error(IdentityErrc::bad_integer, "{} is not a count; set it to 1 or more",
                           {quoted(variable, *text(variable))});
    }
    return number;
  }

  /// @throws IdentityError (bad-port) for a value that is not in 1..65535.
  std::optional<int> port(std::string_view variable) const {
    const std::optional<std::string> value = text(variable);
    if (!value) {
      return std::nullopt;
    }
    const std::optional<int> port = parse_port(*value);
    if (!port) {
      throw_identity_error(IdentityErrc::bad_port, "{} is not a port; set it to a number from 1 to 65535",
                           {quoted(variable, *value)});
    }
    return port;
  }

  /// The variables of `names` that are set, for messages: "RANK='2', WORLD_SIZE='2'".
  std::string stated(std::initializer_list<std::string_view> names) const {
    std::string list;
    for (const std::string_view name : names) {
      if (const std::optional<std::string> value = text(name)) {
        list += (list.empty() ? "" : ", ") + quoted(name, *value);
      }
    }
    return list;
  }

 private:
  template <class Number>
  std::optional<Number> number(std::string_view variable,
                               std::optional<Number> (*parse)(std::string_view) noexcept) const {
    const std::optional<std::string> value = text(variable);
    if (!value) {
      return std::nullopt;
    }
    const std::optional<Number> parsed = parse(*value);
    if (!parsed) {
      throw_identity_error(IdentityErrc::bad_integer,
                           "{} is not a non-negative integer; set it to decimal digits or unset it",
                           {quoted(variable, *value)});
    }
    return parsed;
  }

  const Environment* environment_;
};

}  // namespace DTRAIN_NAMESPACE::identity
