#pragma once
/// @file
/// ShutdownSchedule: when a launcher sends its workers SIGTERM and SIGKILL. Pure.

#include <algorithm>
#include <chrono>
#include <optional>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Times that processes have to end. Processes that compute on devices end slower: they abort running operations, and
/// the driver destroys their contexts. The driver also destroys contexts after SIGKILL; until then their device memory
/// is in use.
struct ShutdownTimeouts {
  /// From the first failure on: the other workers can end by themselves, with a message. ThreadSanitizer delays a
  /// process's exit by a second.
  std::chrono::milliseconds exit_grace{DTRAIN_THREAD_SANITIZER ? 2500 : 300};
  /// From SIGKILL on.
  std::chrono::milliseconds kill_timeout{300};
};
inline constexpr ShutdownTimeouts device_shutdown_timeouts{std::chrono::milliseconds(5000),
                                                           std::chrono::milliseconds(60000)};

/// After the first failure: SIGTERM after `exit_grace`, and SIGKILL `term_grace` later. After a forwarded signal that
/// requests the job's end: SIGKILL after `stop_grace`, or `term_grace` after a second one.
class ShutdownSchedule {
 public:
  using Clock = Deadline::Clock;

  static constexpr std::chrono::milliseconds exit_grace = ShutdownTimeouts{}.exit_grace;
  static constexpr std::chrono::milliseconds term_grace{1000};
  static constexpr std::chrono::milliseconds default_stop_grace{30000};

  explicit ShutdownSchedule(std::chrono::nanoseconds stop_grace = default_stop_grace, ShutdownTimeouts timeouts = {})
      : stop_grace_(std::chrono::ceil<Clock::duration>(stop_grace)), timeouts_(timeouts) {}

  enum class Action { nothing, terminate, kill };

  /// A worker failed. Has no effect after a stop request: workers that stop may end with any status.
  void on_failure(Clock::time_point now) {
    if (!terminate_at_ && !kill_at_) {
      terminate_at_ = now + timeouts_.exit_grace;
      kill_at_ = now + timeouts_.exit_grace + term_grace;
    }
  }

  /// A signal that requests the job's end was forwarded.
  void on_stop_requested(Clock::time_point now) {
    const Clock::time_point latest = now + (stop_requested_ ? Clock::duration(term_grace) : stop_grace_);
    stop_requested_ = true;
    kill_at_ = kill_at_ ? std::min(*kill_at_, latest) : latest;
  }

  /// The action that is due now; each action is returned once.
  Action due(Clock::time_point now) {
    if (kill_at_ && *kill_at_ <= now && !killed_at_) {
      killed_at_ = now;
      terminate_at_.reset();
      return Action::kill;
    }
    if (terminate_at_ && *terminate_at_ <= now && !terminated_) {
      terminated_ = true;
      return Action::terminate;
    }
    return Action::nothing;
  }

  std::optional<Clock::time_point> next() const {
    if (terminate_at_ && !terminated_) {
      return terminate_at_;
    }
    return killed_at_ ? std::nullopt : kill_at_;
  }

  /// Whether the launcher has sent SIGTERM or SIGKILL: workers that end from now on are no first cause.
  bool has_acted() const noexcept { return terminated_ || killed_at_; }

  /// When due() returned `kill`.
  const std::optional<Clock::time_point>& killed_at() const noexcept { return killed_at_; }

  /// Whether the kernel still holds killed processes when the launcher waits for them no longer.
  bool has_given_up(Clock::time_point now) const { return killed_at_ && now - *killed_at_ > timeouts_.kill_timeout; }
  /// How long the launcher waits for a killed process.
  std::chrono::milliseconds kill_timeout() const noexcept { return timeouts_.kill_timeout; }

 private:
  Clock::duration stop_grace_;
  ShutdownTimeouts timeouts_;
  std::optional<Clock::time_point> terminate_at_;
  std::optional<Clock::time_point> kill_at_;
  bool stop_requested_ = false;
  bool terminated_ = false;
  std::optional<Clock::time_point> killed_at_;
};

}  // namespace DTRAIN_NAMESPACE::launch
