#pragma once
/// @file
/// Whether a text has a part, and a check that says which parts it lacks.

#include <doctest/doctest.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace support {

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// How often `part`, which is not empty, stands in `text`.
inline std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size()))
    ++count;
  return count;
}

/// For each of `parts` in turn: empty where it stands in `text`, or else a sentence that says that it does not.
inline std::vector<std::string> missing_parts(std::string_view text, std::initializer_list<std::string_view> parts) {
  std::vector<std::string> missing;
  for (const std::string_view part : parts) {
    missing.push_back(contains(text, part) ? ""
                                           : "there is no '" + std::string(part) + "' in '" + std::string(text) + "'");
  }
  return missing;
}

}  // namespace support

/// Checks of each of some texts that it stands in one: `CHECK_CONTAINS(sentence, "RANK='x'", "unset it")`.
#define CHECK_CONTAINS(text, ...)                                                       \
  for (const std::string& missing_part : ::support::missing_parts(text, {__VA_ARGS__})) \
  CHECK_MESSAGE(missing_part.empty(), missing_part)
