#pragma once
/// @file
/// Tail: the last lines of a stream, for the failure report.

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Keeps the last `max_lines` lines, each truncated to `max_line_bytes`.
class Tail {
 public:
  static constexpr std::size_t max_lines = 20;
  static constexpr std::size_t max_line_bytes = 512;

  void push(std::string_view line) {
    if (lines_.size() == max_lines) {
      lines_.pop_front();
    }
    lines_.emplace_back(line.substr(0, max_line_bytes));
    if (line.size() > max_line_bytes) {
      lines_.back() += "...";
    }
  }

  bool empty() const noexcept { return lines_.empty(); }
  const std::deque<std::string>& lines() const noexcept { return lines_; }

 private:
  std::deque<std::string> lines_;
};

}  // namespace DTRAIN_NAMESPACE::launch
