#pragma once
/// @file
/// Line fold: one line for a message of dtrain that several ranks print, "[0-2,4-63] dtrain: ends because ...".

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/output/console.hpp"
#include "dtrain/launch/supervise/shutdown_schedule.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// A line that begins with "dtrain: " is held until every rank has printed it, at most for `window`. If rank 3 prints
/// "dtrain: rank 3: TEXT", "rank 3: " does not count as a difference, and is not in the folded line.
/// - Other lines are emitted at once, after held lines that the same rank printed before.
/// - The lines of a rank are emitted in their order.
/// Pure. Bounded: holds at most `most_held` lines of at most `longest_held` bytes.
class LineFold {
 public:
  using Clock = ShutdownSchedule::Clock;

  /// Longer than the shutdown of a failed job takes, so that the messages of all its workers are one line.
  static constexpr std::chrono::milliseconds window =
      ShutdownSchedule::exit_grace + ShutdownSchedule::term_grace + std::chrono::milliseconds(200);
  static constexpr std::size_t most_held = 64;
  static constexpr std::size_t longest_held = 4096;

  /// @param ranks number of ranks that may print the same line; with 1, no line is held
  /// @param emit prints a line: "[3] " and its text
  LineFold(int ranks, std::function<void(std::string_view prefix, std::string_view text)> emit)
      : ranks_(static_cast<std::size_t>(std::max(1, ranks))), emit_(std::move(emit)) {}

  /// A rank's line, without its '\n'.
  void take(int rank, std::string_view line, Clock::time_point now) {
    const std::size_t last = held_with(rank);  // one past the last held line of this rank
    if (ranks_ == 1 || line.substr(0, own.size()) != own || line.size() > longest_held) {
      show(last);
      emit_(prefix_of({rank}), line);
      return;
    }
    std::string_view text = line.substr(own.size());
    const std::string name = rank_name(rank);
    const bool is_named = text.substr(0, name.size()) == name;
    text.remove_prefix(is_named ? name.size() : 0);
    std::size_t at = last;
    while (at < held_.size() && (held_[at].is_named != is_named || held_[at].text != text)) {
      ++at;
    }
    if (at == held_.size()) {
      show(at < most_held ? 0 : 1);
      at = held_.size();
      held_.push_back({std::string(text), is_named, {}, now + window});
    }
    std::vector<int>& ranks = held_[at].ranks;
    ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), rank), rank);
    while (!held_.empty() && held_.front().ranks.size() == ranks_) {
      show(1);
    }
  }

  /// Emits lines that have been held for `window`.
  void expire(Clock::time_point now) {
    while (!held_.empty() && held_.front().until <= now) {
      show(1);
    }
  }

  /// Emits the lines that are held for this rank, and those before them.
  void flush(int rank) { show(held_with(rank)); }

  /// Emits all held lines.
  void flush() { show(held_.size()); }

  /// The time at which the next held line expires.
  std::optional<Clock::time_point> next() const {
    return held_.empty() ? std::nullopt : std::optional(held_.front().until);
  }

 private:
  struct Held {
    std::string text;       ///< without "dtrain: " and "rank R: "
    bool is_named = false;  ///< each rank R prints "rank R: " before the text
    std::vector<int> ranks;
    Clock::time_point until;
  };

  static constexpr std::string_view own = "dtrain: ";

  DTRAIN_NOT_INLINED static std::string rank_name(int rank) { return format_text("rank {}: ", {rank}); }

  DTRAIN_NOT_INLINED static std::string prefix_of(const std::vector<int>& ranks) {
    std::string prefix = "[";
    for (const std::string& run : rendezvous::rank_ranges(ranks)) {
      append_text(prefix, "{}{}", {prefix.size() == 1 ? "" : ",", run});
    }
    return prefix.append("] ");
  }

  std::size_t held_with(int rank) const {
    std::size_t last = held_.size();
    while (last > 0 && !std::binary_search(held_[last - 1].ranks.begin(), held_[last - 1].ranks.end(), rank)) {
      --last;
    }
    return last;
  }

  DTRAIN_NOT_INLINED void show(std::size_t count) {
    for (std::size_t at = 0; at < count; ++at) {
      const Held& each = held_[at];
      const std::string name = each.is_named && each.ranks.size() == 1 ? rank_name(each.ranks.front()) : std::string();
      emit_(prefix_of(each.ranks), format_text("{}{}{}", {own, name, each.text}));
    }
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  std::size_t ranks_;
  std::function<void(std::string_view, std::string_view)> emit_;
  std::vector<Held> held_;  ///< in the order in which they were first printed
};

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

  /// Prints the lines that are held for this rank, before other output of it is printed.
  void flush(int rank) { fold_.flush(rank); }

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
