#pragma once
/// @file
/// One line for a sentence of dtrain's that several ranks print: "[0-2,4-63] dtrain: ends because ...".

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/launch/supervise/shutdown_schedule.hpp"
#include "dtrain/rendezvous/membership/rank_list.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// A line that begins with "dtrain: " is held until every rank has said it, for `window` at most. "rank 3: " behind
/// that, where rank 3 says it, does not count as a difference, and is not in the folded line.
/// - Every other line is shown at once. What its rank has said before, and is held, is shown before it.
/// - The lines of a rank are shown in their order.
/// Pure. Bounded: `most_held` lines of `longest_held` bytes; more, and longer ones, are not held.
class LineFold {
 public:
  using Clock = ShutdownSchedule::Clock;

  /// Longer than the workers of a job that has failed take to end: all of them print why in one line.
  static constexpr std::chrono::milliseconds window =
      ShutdownSchedule::exit_grace + ShutdownSchedule::term_grace + std::chrono::milliseconds(200);
  static constexpr std::size_t most_held = 64;
  static constexpr std::size_t longest_held = 4096;

  /// @param ranks how many may say the same; of 1 nothing is held
  /// @param emit shows a line: "[3] " and its text
  LineFold(int ranks, std::function<void(std::string_view prefix, std::string_view text)> emit)
      : ranks_(static_cast<std::size_t>(std::max(1, ranks))), emit_(std::move(emit)) {}

  /// A rank's line, without its '\n'.
  void take(int rank, std::string_view line, Clock::time_point now) {
    const std::size_t last = held_with(rank);  // one behind the last that this rank has said
    if (ranks_ == 1 || line.substr(0, own.size()) != own || line.size() > longest_held) {
      show(last);
      emit_(prefix_of({rank}), line);
      return;
    }
    std::string_view text = line.substr(own.size());
    const std::string name = rank_name(rank);
    const bool is_named = text.substr(0, name.size()) == name;
    text.remove_prefix(is_named ? name.size() : 0);
    const auto begin = held_.begin() + static_cast<std::ptrdiff_t>(last);
    auto same = std::find_if(begin, held_.end(),
                             [&](const Held& each) { return each.is_named == is_named && each.text == text; });
    if (same == held_.end()) {
      show(held_.size() < most_held ? 0 : 1);
      same = held_.insert(held_.end(), Held{std::string(text), is_named, {}, now + window});
    }
    same->ranks.insert(std::upper_bound(same->ranks.begin(), same->ranks.end(), rank), rank);
    while (!held_.empty() && held_.front().ranks.size() == ranks_) {
      show(1);
    }
  }

  /// Shows what has been held for long enough.
  void expire(Clock::time_point now) {
    while (!held_.empty() && held_.front().until <= now) {
      show(1);
    }
  }

  /// Shows all.
  void flush() { show(held_.size()); }

  /// When the next one has been held for long enough.
  std::optional<Clock::time_point> next() const {
    return held_.empty() ? std::nullopt : std::optional(held_.front().until);
  }

 private:
  struct Held {
    std::string text;       ///< without what `is_named` says
    bool is_named = false;  ///< "rank R: " stands before it, of the rank that says it
    std::vector<int> ranks;
    Clock::time_point until;
  };

  static constexpr std::string_view own = "dtrain: ";

  static std::string rank_name(int rank) { return "rank " + std::to_string(rank) + ": "; }

  static std::string prefix_of(const std::vector<int>& ranks) {
    std::string prefix = "[";
    for (const std::string& run : rendezvous::rank_ranges(ranks)) {
      prefix += (prefix.size() == 1 ? "" : ",") + run;
    }
    return prefix + "] ";
  }

  std::size_t held_with(int rank) const {
    const auto last = std::find_if(held_.rbegin(), held_.rend(), [rank](const Held& each) {
      return std::binary_search(each.ranks.begin(), each.ranks.end(), rank);
    });
    return static_cast<std::size_t>(held_.rend() - last);
  }

  void show(std::size_t count) {
    for (; count > 0; --count) {
      const Held& first = held_.front();
      const bool is_alone = first.ranks.size() == 1;
      const std::string name = first.is_named && is_alone ? rank_name(first.ranks.front()) : std::string();
      emit_(prefix_of(first.ranks), std::string(own) + name + first.text);
      held_.pop_front();
    }
  }

  std::size_t ranks_;
  std::function<void(std::string_view, std::string_view)> emit_;
  std::deque<Held> held_;  ///< in the order in which they were first said
};

}  // namespace DTRAIN_NAMESPACE::launch
