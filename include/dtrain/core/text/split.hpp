#pragma once
/// @file
/// Lists in texts of variables and flags: next_entry() takes one entry, has_entry() finds one, joined() makes a list.

#include <algorithm>
#include <string>
#include <string_view>

#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

/// Removes the first entry of `list`, up to `separator` or to the end, and the separator. @returns the entry
inline std::string_view next_entry(std::string_view& list, char separator) noexcept {
  const std::string_view entry = list.substr(0, list.find(separator));
  list.remove_prefix(std::min(entry.size() + 1, list.size()));
  return entry;
}

/// Whether a list has the entry; an empty list has none.
inline bool has_entry(std::string_view list, char separator, std::string_view entry) noexcept {
  while (!list.empty()) {
    if (next_entry(list, separator) == entry) return true;
  }
  return false;
}

/// The texts with `separator` between them.
template <class Texts>
std::string joined(const Texts& texts, std::string_view separator) {
  std::string list;
  for (const auto& text : texts) {
    append_text(list, "{}{}", {list.empty() ? std::string_view() : separator, text});
  }
  return list;
}

}  // namespace DTRAIN_NAMESPACE
