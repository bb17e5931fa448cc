#pragma once
/// @file
/// Line splitter: splits a stream of bytes into lines of bounded length.

#include <cstddef>
#include <string>
#include <string_view>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Pure: the lines depend on the bytes alone, not on the sizes of the reads. A longer line becomes several lines of
/// exactly `max_line_bytes`, and the rest.
class LineSplitter {
 public:
  static constexpr std::size_t default_max_line_bytes = std::size_t{64} << 10;

  explicit LineSplitter(std::size_t max_line_bytes = default_max_line_bytes) : max_line_bytes_(max_line_bytes) {}

  /// Calls `emit(std::string_view)` for each line that is complete now, without its '\n'.
  template <class Emit>
  void feed(std::string_view bytes, Emit emit) {
    while (!bytes.empty()) {
      const std::size_t newline = bytes.find('\n');
      const std::size_t room = max_line_bytes_ - partial_.size();
      const std::size_t length = newline < bytes.size() ? newline : bytes.size();
      const std::size_t taken = length < room ? length : room;
      partial_.append(bytes.substr(0, taken));
      bytes.remove_prefix(taken);
      const bool whole = !bytes.empty() && bytes.front() == '\n';
      if (whole) {
        bytes.remove_prefix(1);
      }
      // A line of maximal length waits for the next byte: a '\n' there ends this line, and not an empty one.
      if (whole || !bytes.empty()) {
        emit(std::string_view(partial_));
        partial_.clear();
      }
    }
  }

  /// At the end of the stream: emits a last line that has no '\n'.
  template <class Emit>
  void finish(Emit emit) {
    if (!partial_.empty()) {
      emit(std::string_view(partial_));
      partial_.clear();
    }
  }

  /// The line that is not complete yet.
  std::string_view partial() const noexcept { return partial_; }

 private:
  std::size_t max_line_bytes_;
  std::string partial_;
};

/// The text with `prefix` after each '\r': where a progress bar begins to draw again, its prefix stays in front of it.
/// @param ends_line whether the line ends after the text: a '\r' there ("\r\n") draws nothing again
inline std::string prefixed_after_returns(std::string_view text, std::string_view prefix, bool ends_line) {
  std::string prefixed;
  for (std::size_t i = 0; i < text.size(); ++i) {
    prefixed += text[i];
    if (text[i] == '\r' && !(ends_line && i + 1 == text.size())) {
      prefixed += prefix;
    }
  }
  return prefixed;
}

/// The text of a line after the last '\r' that is followed by another character, as a terminal shows it. Therefore a
/// progress bar that a worker drew a hundred times is one line.
inline std::string_view visible_part(std::string_view line) noexcept {
  while (!line.empty() && line.back() == '\r') {
    line.remove_suffix(1);
  }
  const std::size_t back = line.rfind('\r');
  return back == std::string_view::npos ? line : line.substr(back + 1);
}

}  // namespace DTRAIN_NAMESPACE::launch
