#pragma once
/// @file
/// Job settings: text that must be equal on all ranks, and its first difference, for error sentences. Pure.

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Lines "name=value", added in the same order on every rank. A Join carries at most max_settings_bytes of them.
class JobSettings {
 public:
  JobSettings& add(std::string_view name, std::string_view value) {
    append_text(text_, "{}={}\n", {name, value});
    return *this;
  }
  const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

namespace detail {

/// Removes the first line from `text`, and returns it sanitized; "nothing" if there is none.
inline std::string take_line(std::string_view& text) {
  if (text.empty()) {
    return "nothing";
  }
  const std::size_t end = text.find('\n');
  const std::string line = sanitize(text.substr(0, end));
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

}  // namespace detail

/// The first pair of lines that differ; nothing if all lines are equal.
inline std::optional<std::pair<std::string, std::string>> first_difference(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    std::string first = detail::take_line(a);
    std::string second = detail::take_line(b);
    if (first != second) {
      return std::make_pair(std::move(first), std::move(second));
    }
  }
  return std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
