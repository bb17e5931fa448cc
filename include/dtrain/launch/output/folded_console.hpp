#pragma once
/// @file
/// Folded console: LineFold in front of a console, with a timer for held lines.

#include <chrono>
#include <string_view>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/launch/output/console.hpp"
#include "dtrain/launch/output/line_fold.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Lifetime: the loop and the console outlive it. The destructor prints held lines. Threads: the loop's.
class FoldedConsole {
 public:
  /// @param ranks number of ranks that may print the same line; with 1, no line is folded
  FoldedConsole(async::EventLoop& loop, Console& console, int ranks)
      : fold_(ranks, [&console](std::string_view prefix, std::string_view text) { console.line(prefix, text); }),
        changed_(loop),
        showing_(loop.spawn(show_in_time())) {}
  FoldedConsole(const FoldedConsole&) = delete;
  FoldedConsole& operator=(const FoldedConsole&) = delete;
  ~FoldedConsole() {
    try {
      flush();
    } catch (...) {  // out of memory: the lines are lost
    }
  }

  /// A rank's line, without its '\n'.
  void line(int rank, std::string_view text) {
    fold_.take(rank, text, LineFold::Clock::now());
    changed_.set();
  }

  /// Prints held lines.
  void flush() { fold_.flush(); }

 private:
  async::Task<void> show_in_time() {
    for (;;) {
      const auto longest = LineFold::Clock::now() + std::chrono::hours(1);
      co_await changed_.wait(Deadline::at(fold_.next().value_or(longest)));
      fold_.expire(LineFold::Clock::now());
    }
  }

  LineFold fold_;
  async::AutoResetEvent changed_;
  async::TaskHandle showing_;  ///< last: destroyed before the members that it uses
};

}  // namespace DTRAIN_NAMESPACE::launch
