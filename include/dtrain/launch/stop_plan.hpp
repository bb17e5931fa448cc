#pragma once
/// @file
/// When the workers are told to stop, and when they are killed: a pure function of what happened when.

#include <algorithm>
#include <chrono>
#include <optional>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// After the first failure the others get `settle` to end by themselves, saying why, then SIGTERM, and SIGKILL
/// `term_grace` later. After a forwarded SIGINT or SIGTERM they have `stop_grace`; a second one leaves them
/// `term_grace`.
class StopPlan {
 public:
  using Clock = Deadline::Clock;

  /// ThreadSanitizer holds a process up for a second when it exits.
  static constexpr std::chrono::milliseconds settle{DTRAIN_THREAD_SANITIZER ? 2500 : 300};
  static constexpr std::chrono::milliseconds term_grace{1000};
  static constexpr std::chrono::milliseconds default_stop_grace{30000};

  explicit StopPlan(std::chrono::nanoseconds stop_grace = default_stop_grace)
      : stop_grace_(std::chrono::ceil<Clock::duration>(stop_grace)) {}

  enum class Action { nothing, terminate, kill };

  /// A worker failed. Workers that were asked to stop may end as they like.
  void failed(Clock::time_point now) {
    if (!terminate_at_ && !kill_at_) {
      terminate_at_ = now + settle;
      kill_at_ = now + settle + term_grace;
    }
  }

  /// SIGINT or SIGTERM was forwarded.
  void stop_asked(Clock::time_point now) {
    const Clock::time_point latest = now + (stop_asked_ ? Clock::duration(term_grace) : stop_grace_);
    stop_asked_ = true;
    kill_at_ = kill_at_ ? std::min(*kill_at_, latest) : latest;
  }

  bool was_stop_asked() const noexcept { return stop_asked_; }

  /// What is to be done now, each once.
  Action due(Clock::time_point now) {
    if (kill_at_ && *kill_at_ <= now && !killed_) {
      killed_ = true;
      terminate_at_.reset();
      return Action::kill;
    }
    if (terminate_at_ && *terminate_at_ <= now && !terminated_) {
      terminated_ = true;
      return Action::terminate;
    }
    return Action::nothing;
  }

  /// When there is something to do next.
  std::optional<Clock::time_point> next() const {
    if (terminate_at_ && !terminated_) {
      return terminate_at_;
    }
    return killed_ ? std::nullopt : kill_at_;
  }

  /// Whether the launcher itself has ended workers: what ends from now on is no cause.
  bool has_acted() const noexcept { return terminated_ || killed_; }
  bool has_killed() const noexcept { return killed_; }

 private:
  Clock::duration stop_grace_;
  std::optional<Clock::time_point> terminate_at_;
  std::optional<Clock::time_point> kill_at_;
  bool stop_asked_ = false;
  bool terminated_ = false;
  bool killed_ = false;
};

}  // namespace DTRAIN_NAMESPACE::launch
