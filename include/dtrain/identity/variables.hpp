#pragma once
/// @file
/// Variables: typed, strict reads of a process's environment variables. Environment: a snapshot of all.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/identity/identity_error.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// An environment: variables and their values.
/// @ingroup launchers
using Environment = std::map<std::string, std::string, std::less<>>;

/// `NAME='value'` for messages.
std::string quoted(std::string_view variable, std::string_view value);

/// A number in decimal digits, at most 2147483647; nullopt for other text.
std::optional<int> parse_integer(std::string_view text) noexcept;

/// A number of at most 18 decimal digits, for ids that only enter a formula; nullopt for other text.
std::optional<std::uint64_t> parse_wide_integer(std::string_view text) noexcept;

/// 1..65535 in decimal digits; nullopt for other text.
std::optional<int> parse_port(std::string_view text) noexcept;

/// MIN:MAX, of ranks or of nodes.
struct IntegerRange {
  int least = 0;
  int most = 0;
};

/// Whether the text is written as a range; see parse_range().
inline bool is_range(std::string_view text) noexcept {
  return text.find(':') != std::string_view::npos;
}

/// "2:4"; nullopt for other text, and unless 1 <= MIN <= MAX.
std::optional<IntegerRange> parse_range(std::string_view text) noexcept;

/// Reads an Environment. An empty value counts as unset, and the empty name names no variable. Lifetime: the
/// environment outlives it and the values that it returns, unchanged.
class Variables {
 public:
  explicit Variables(const Environment& environment) noexcept : environment_(&environment) {}

  const Environment& environment() const noexcept { return *environment_; }

  std::optional<std::string_view> text(std::string_view variable) const;

  DTRAIN_NOT_INLINED bool has(std::string_view variable) const { return text(variable).has_value(); }
  /// The names of the set variables that begin with `prefix`, in the order of their bytes. A name with other bytes than
  /// letters, digits and underscores, which no shell can set, is left out: messages quote the names as they are.
  std::vector<std::string_view> names_with_prefix(std::string_view prefix) const;

  /// nullopt if unset. @throws IdentityError (bad-integer) for a value that is not decimal digits, or above 2147483647
  std::optional<int> integer(std::string_view variable) const;

  /// Sets a field without a value to the variable's. @throws as integer
  void fill(std::optional<int>& field, std::string_view variable) const { field = field ? field : integer(variable); }

  /// A number of up to 18 digits. @throws IdentityError (bad-integer)
  std::optional<std::uint64_t> wide_integer(std::string_view variable) const;

  /// An integer of at least 1. @throws IdentityError (bad-integer)
  std::optional<int> count(std::string_view variable) const;

  /// @throws IdentityError (bad-port) for a value that is not in 1..65535.
  std::optional<int> port(std::string_view variable) const;

  /// The variables of `names` that are set, for messages: "RANK='2', WORLD_SIZE='2'".
  std::string stated(std::initializer_list<std::string_view> names) const;

 private:
  [[noreturn]] void refuse_integer(std::string_view variable) const;

  const Environment* environment_;
};

/// A copy of the process's environment. Entries without a name are skipped. If a name occurs twice, the first entry
/// counts, as in getenv. Threads: no other thread may change the environment meanwhile. @throws Error (limit) beyond
/// 65,536 variables.
/// @ingroup launchers
inline Environment snapshot_environment() {
  constexpr std::size_t most = 65536;
  Environment environment;
  std::size_t seen = 0;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (++seen > most) {
      throw_error(Errc::limit, "reading the environment: it has more than 65536 variables; start with fewer");
    }
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos && equals > 0) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return environment;
}

}  // namespace DTRAIN_NAMESPACE::identity

#if DTRAIN_DEFINITIONS

#include <charconv>
#include <system_error>

namespace DTRAIN_NAMESPACE::identity {

DTRAIN_DEFINED std::string quoted(std::string_view variable, std::string_view value) {
  return format_text("{}={}", {variable, in_quotes(value, 64)});
}

DTRAIN_DEFINED std::optional<std::uint64_t> parse_wide_integer(std::string_view text) noexcept {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = error == std::errc() && end == text.data() + text.size() && text.size() <= 18;
  return is_whole ? std::optional(number) : std::nullopt;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED std::optional<int> parse_integer(std::string_view text) noexcept {
  const std::optional<std::uint64_t> number = parse_wide_integer(text.size() > 10 ? std::string_view() : text);
  return !number || *number > 2147483647 ? std::nullopt : std::optional<int>(static_cast<int>(*number));
}

DTRAIN_DEFINED std::optional<int> parse_port(std::string_view text) noexcept {
  const std::optional<int> number = parse_integer(text);
  return number && *number >= 1 && *number <= 65535 ? number : std::nullopt;
}

DTRAIN_DEFINED std::optional<IntegerRange> parse_range(std::string_view text) noexcept {
  const int least = parse_integer(next_entry(text, ':')).value_or(0);
  const int most = parse_integer(text).value_or(0);
  return least >= 1 && most >= least ? std::optional(IntegerRange{least, most}) : std::nullopt;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED std::optional<std::string_view> Variables::text(std::string_view variable) const {
  const auto found = variable.empty() ? environment_->end() : environment_->find(variable);
  return found == environment_->end() || found->second.empty() ? std::nullopt
                                                               : std::optional<std::string_view>(found->second);
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void Variables::refuse_integer(std::string_view variable) const {
  throw_identity_error(IdentityErrc::bad_integer,
                       "{} is not a non-negative integer; set it to decimal digits or unset it",
                       {quoted(variable, *text(variable))});
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED std::optional<int> Variables::integer(std::string_view variable) const {
  const std::optional<int> number = parse_integer(text(variable).value_or(""));
  if (!number && has(variable)) refuse_integer(variable);
  return number;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED std::optional<std::uint64_t> Variables::wide_integer(
    std::string_view variable) const {
  const std::optional<std::uint64_t> number = parse_wide_integer(text(variable).value_or(""));
  if (!number && has(variable)) refuse_integer(variable);
  return number;
}

DTRAIN_DEFINED std::vector<std::string_view> Variables::names_with_prefix(std::string_view prefix) const {
  std::vector<std::string_view> names;
  for (auto at = environment_->lower_bound(prefix); at != environment_->end() && at->first.starts_with(prefix); ++at) {
    const bool is_name = std::all_of(at->first.begin(), at->first.end(), [](char byte) {
      return (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') ||
             byte == '_';
    });
    if (is_name && !at->second.empty()) {
      names.push_back(at->first);
    }
  }
  return names;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED std::optional<int> Variables::count(std::string_view variable) const {
  const std::optional<int> number = integer(variable);
  if (number && *number == 0) {
    throw_identity_error(IdentityErrc::bad_integer, "{} is not a count; set it to 1 or more",
                         {quoted(variable, *text(variable))});
  }
  return number;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED std::optional<int> Variables::port(std::string_view variable) const {
  const std::optional<std::string_view> value = text(variable);
  const std::optional<int> port = parse_port(value.value_or(""));
  if (value && !port) {
    throw_identity_error(IdentityErrc::bad_port, "{} is not a port; set it to a number from 1 to 65535",
                         {quoted(variable, *value)});
  }
  return port;
}

DTRAIN_DEFINED std::string Variables::stated(std::initializer_list<std::string_view> names) const {
  std::string list;
  for (const std::string_view name : names) {
    if (const std::optional<std::string_view> value = text(name)) {
      append_entry(list, ", ", quoted(name, *value));
    }
  }
  return list;
}

}  // namespace DTRAIN_NAMESPACE::identity

#endif  // DTRAIN_DEFINITIONS
