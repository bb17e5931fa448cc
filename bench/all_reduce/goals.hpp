#pragma once
/// @file
/// The goals of all_reduce_bench, each met at every size or missed at some.

#include <cstdint>
#include <string>
#include <vector>

#include "bench/all_reduce/results.hpp"
#include "bench/goal.hpp"

namespace bench {

/// A ratio that is to be at least `least` at each of some sizes.
class RatioGoal {
 public:
  RatioGoal(std::string text, double least) : text_(std::move(text)), least_(least) {}

  void see(int ranks, std::uint64_t bytes, double ratio) {
    lowest_ = seen_ == 0 || ratio < lowest_ ? ratio : lowest_;
    ++seen_;
    if (ratio < least_) {
      missed_ +=
          (missed_.empty() ? "" : ", ") + std::to_string(ranks) + " x " + bytes_text(bytes) + ": " + text_of(ratio, "");
    }
  }

  void print() const {
    if (seen_ == 0) {
      std::printf("         goal: %s: not measured\n", text_.c_str());
    } else {
      print_goal(text_, missed_.empty(), missed_.empty() ? "lowest " + text_of(lowest_, "") : missed_);
    }
  }

 private:
  std::string text_;
  double least_;
  double lowest_ = 0;
  int seen_ = 0;
  std::string missed_;
};

inline constexpr std::uint64_t kibi = 1024;
inline constexpr std::uint64_t mebi = 1024 * kibi;

inline void print_goals(const std::vector<SizeResult>& results) {
  RatioGoal small("to 64 KiB never slower than the better peer, arena memory", 1);
  RatioGoal small_foreign("to 64 KiB never slower than the better peer, foreign memory", 1);
  RatioGoal middle("4 to 64 MiB in arena memory at least 5 times the better peer", 5);
  RatioGoal large("256 KiB to 256 MiB elsewhere in arena memory at least 3 times the better peer", 3);
  RatioGoal foreign("256 KiB to 256 MiB in foreign memory at least 2.3 times the better peer", 2.3);
  RatioGoal limit("256 KiB to 256 MiB at least 0.85 of the limit", 0.85);
  for (const SizeResult& result : results) {
    const std::string peer = result.better_peer();
    if (!peer.empty() && result.bytes <= 64 * kibi) {
      small.see(result.ranks, result.bytes, result.ratio(peer, "bound"));
      small_foreign.see(result.ranks, result.bytes, result.ratio(peer, "foreign"));
    } else if (!peer.empty() && result.bytes >= 256 * kibi) {
      const bool in_middle = result.bytes >= 4 * mebi && result.bytes <= 64 * mebi;
      (in_middle ? middle : large).see(result.ranks, result.bytes, result.ratio(peer, "bound"));
      foreign.see(result.ranks, result.bytes, result.ratio(peer, "foreign"));
    }
    if (result.has("limit") && result.bytes >= 256 * kibi) {
      limit.see(result.ranks, result.bytes, result.ratio("limit", "bound"));
    }
  }
  for (const RatioGoal* goal : {&small, &small_foreign, &middle, &large, &foreign, &limit}) {
    goal->print();
  }
}

}  // namespace bench
