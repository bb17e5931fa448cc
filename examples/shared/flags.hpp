#pragma once
/// @file
/// Reads a program's flags from its arguments, each into a member of the program's Options.

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "dtrain/core/error.hpp"

namespace shared {

[[noreturn]] inline void refuse(const std::string& sentence) {
  throw dtrain::Error(dtrain::Errc::usage, sentence + "; --help shows the flags");
}

inline std::string quoted(std::string_view text) {
  return '"' + std::string(text.substr(0, 100)) + '"';
}

/// All of `text` as a decimal number from `low` to `high`.
template <class Number>
Number number(std::string_view flag, std::string_view text, Number low, Number high) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || !(value >= low && value <= high)) {  // also refuses not-a-number
    const auto print = [](Number bound) { return std::to_string(static_cast<std::uint64_t>(bound)); };
    refuse(std::string(flag) + " is " + quoted(text) + " instead of " +
           (std::is_integral_v<Number> ? "an integer" : "a number") + " from " + print(low) + " to " + print(high));
  }
  return value;
}

template <class Options>
struct Flag {
  std::string_view name;
  bool takes_value;
  void (*set)(Options& options, std::string_view name, std::string_view value);
};

/// @param flags a range of Flag<Options>
/// @param arguments [0] is the program's name. A value follows its flag after '=' or as the next argument.
/// @throws dtrain::Error (usage) in one sentence for an unknown flag, a missing value or one that cannot be meant.
template <class Options, class Flags>
Options parse_flags(const Flags& flags, std::span<char* const> arguments) {
  Options options;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    const std::size_t equals = std::min(argument.find('='), argument.size());
    const std::string_view name = argument.substr(0, equals);
    const auto flag =
        std::find_if(flags.begin(), flags.end(), [name](const Flag<Options>& known) { return known.name == name; });
    if (flag == flags.end()) refuse("the flag " + quoted(argument) + " is not known");
    std::string_view value;
    if (equals < argument.size()) {
      if (!flag->takes_value) refuse(std::string(name) + " takes no value");
      value = argument.substr(equals + 1);
    } else if (flag->takes_value && i + 1 < arguments.size()) {
      value = arguments[++i];
    }
    if (flag->takes_value && value.empty()) refuse(std::string(name) + " needs a value");
    flag->set(options, name, value);
  }
  return options;
}

}  // namespace shared
