#pragma once
/// @file
/// Losses: what the workers of one job as threads share, and which of them is lost when.

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "unit/elastic/loss_case.hpp"

namespace rank_loss {

/// What the workers of a job share. Threads: any.
class Losses {
 public:
  explicit Losses(const Case& of) : case_(of) {}

  /// Whether the worker is lost here, by the plan: once for each loss.
  bool takes(Point point, int slot, std::uint64_t step, std::uint64_t attempt) {
    const std::lock_guard lock(mutex_);
    const bool is_first = lost_.empty();
    const std::optional<Point> next = is_first            ? std::optional(case_.first)
                                      : lost_.size() == 1 ? case_.second
                                                          : std::nullopt;
    if (next != point) return false;
    const bool is_whoever_comes = point == Point::half_sent || (!is_first && point == Point::half_received);
    const int victim = is_first || case_.first == Point::half_sent ? case_.victim : (case_.victim + 1) % workers;
    if (!is_whoever_comes && slot != victim) return false;
    if (is_first && point < Point::announce && step < 2) return false;
    const bool is_transfer = point == Point::half_sent || point == Point::half_received;
    if (is_transfer && !can_go_on_without(slot, attempt)) return false;
    lost_.push_back({slot, attempt});
    changed_.notify_all();
    return true;
  }
  void committed(std::uint64_t attempt, int ranks) {
    const std::lock_guard lock(mutex_);
    last_attempt_ = std::max(last_attempt_, attempt);
    if (ranks == workers) last_whole_ = std::max(last_whole_, attempt);
    changed_.notify_all();
  }
  /// In a transfer. @param has_state of an earlier attempt, whether or not it is rank 0's
  void transfers(int slot, std::uint64_t attempt, bool has_state) {
    const std::lock_guard lock(mutex_);
    states_.at(static_cast<std::size_t>(slot)) = has_state ? attempt : 0;
  }
  void note(const std::string& problem) {
    const std::lock_guard lock(mutex_);
    if (problem_.empty()) problem_ = problem;
  }
  std::string problem() {
    const std::lock_guard lock(mutex_);
    return problem_;
  }

  struct Lost {
    int slot = 0;
    std::uint64_t attempt = 0;
  };
  struct Facts {
    std::vector<Lost> lost;
    std::uint64_t last_attempt = 0;  ///< in which a step was committed
    std::uint64_t last_whole = 0;    ///< by all workers
  };
  /// Blocking: until `condition(facts)` holds.
  template <class Condition>
  void wait_until(Condition condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return condition(Facts{lost_, last_attempt_, last_whole_}); });
  }

  std::atomic<bool> ends{false};

 private:
  /// Whether another rank of the attempt has a state.
  bool can_go_on_without(int slot, std::uint64_t attempt) const {
    for (int other = 0; other < workers; ++other) {
      const bool is_lost = std::any_of(lost_.begin(), lost_.end(),
                                       [&](const Lost& each) { return each.slot == other && each.attempt == attempt; });
      if (other != slot && !is_lost && states_.at(static_cast<std::size_t>(other)) == attempt) return true;
    }
    return false;
  }

  const Case case_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Lost> lost_;
  std::array<std::uint64_t, workers> states_{};  ///< the last attempt that each began with a state
  std::uint64_t last_attempt_ = 0;
  std::uint64_t last_whole_ = 0;
  std::string problem_;
};

}  // namespace rank_loss
