#pragma once
/// @file
/// Whether a text has a part, and a check that says which parts it lacks.

#include <doctest/doctest.h>

#include <string>
#include <string_view>

namespace support {

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Those of `parts` that do not stand in `text`, and `text`; empty where all do.
template <class... Parts>
std::string missing_parts(std::string_view text, const Parts&... parts) {
  std::string missing;
  [[maybe_unused]] const auto add = [&](std::string_view part) {
    if (!contains(text, part)) missing += "there is no '" + std::string(part) + "'\n";
  };
  (add(parts), ...);
  return missing.empty() ? missing : missing + "in '" + std::string(text) + "'";
}

}  // namespace support

/// Checks that all of some texts stand in one: `CHECK_CONTAINS(sentence, "RANK='x'", "unset it")`.
#define CHECK_CONTAINS(text, ...)                                                    \
  do {                                                                               \
    const std::string missing_of_text = ::support::missing_parts(text, __VA_ARGS__); \
    CHECK_MESSAGE(missing_of_text.empty(), missing_of_text);                         \
  } while (false)
