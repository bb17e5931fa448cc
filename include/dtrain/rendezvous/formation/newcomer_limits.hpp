#pragma once
/// @file
/// NewcomerLimits of a FormationState: how often newcomers may end an elastic job's attempts, and hosts that are
/// barred. Pure.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/formation/formation_messages.hpp"
#include "dtrain/rendezvous/formation/formation_workers.hpp"
#include "dtrain/rendezvous/limits.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Let G be FormationOptions::least_resize_gap.
/// 1. After newcomers have ended an attempt, they end another one 1 G, 4 G, 16 G, 40 G, 40 G ... later at the earliest,
///    and not before 20 times the last pause, or 40 G where that is less. The sequence starts again when newcomers have
///    ended no attempt for 60 G. So workers that come within 60 G end at most 5 attempts, because 1 + 4 + 16 + 40 > 60.
/// 2. A newcomer that breaks an attempt before it has committed a step there bars its host for 1, 2, 4 ... 60 s: from
///    FormationOptions::least_bar to longest_bar. The next newcomer of the host that commits a step resets the time to
///    least_bar. A bar is for newcomers: a worker that has trained becomes a rank all the same.
/// 3. An attempt that times out before a commit bars the hosts of all its newcomers, whichever rank reports that, for
///    20 times as long as the attempt took, because all ranks waited so long.
/// Threads: one. Memory: an entry for each host that has broken an attempt. A template, as DTRAIN_ON_USE explains.
template <class = void>
class NewcomerLimits {
 public:
  using Instant = Deadline::Clock::time_point;

  struct Bar {
    Instant until{};
    std::chrono::seconds time{0};
    std::string reason{};  ///< a clause

    Barred message(Instant now) const {
      return {wire_milliseconds(std::chrono::ceil<std::chrono::milliseconds>(until - now)), reason};
    }
  };

  /// @param least_gap G
  NewcomerLimits(std::chrono::milliseconds least_gap, std::chrono::seconds least_bar, std::chrono::seconds longest_bar)
      : least_gap_(least_gap), least_bar_(least_bar), longest_bar_(longest_bar) {}

  /// When newcomers may end an attempt again; nullopt if they have ended none.
  std::optional<Instant> next_resize() const {
    const auto gap = std::clamp<Deadline::Clock::duration>(20 * pause_, gaps_ * least_gap_, 40 * least_gap_);
    return resized_at_ ? std::optional(*resized_at_ + gap) : std::nullopt;
  }

  /// Newcomers end an attempt.
  void on_resize(Instant now) {
    const bool is_in_row = resized_at_ && now - *resized_at_ < 60 * least_gap_;
    gaps_ = is_in_row ? std::min(4 * gaps_, 40) : 1;
    resized_at_ = now;
  }

  /// All ranks have joined an attempt. @param failed_at when the attempt before it failed
  void on_joined(const std::optional<Instant>& failed_at, Instant now) {
    if (resized_at_ && failed_at == resized_at_) pause_ = now - *resized_at_;
  }

  /// A newcomer of the host has broken an attempt.
  void on_broken(const std::string& host_id, std::uint64_t attempt, const Cause& cause, Instant now) {
    Bar& bar = bars_[host_id];
    bar.time = std::min(std::max(2 * bar.time, least_bar_), longest_bar_);
    bar.until = now + bar.time;
    bar.reason = format_text("a new worker of this host broke attempt {} before it had committed a step there: {}",
                             {attempt, cause.sentence()});
  }

  /// An attempt with a newcomer of the host timed out before a commit. @param lasted time that the attempt took
  void on_timeout(const std::string& host_id, std::uint64_t attempt, const Cause& cause,
                  Deadline::Clock::duration lasted, Instant now) {
    on_broken(host_id, attempt, cause, now);
    Bar& bar = bars_[host_id];
    bar.until = std::max(bar.until, now + 20 * lasted);
    bar.reason = format_text("attempt {}, which had a new worker of this host, timed out before a commit: {}",
                             {attempt, cause.sentence()});
  }

  /// A newcomer of the host has committed a step.
  void on_success(const std::string& host_id) { bars_.erase(host_id); }

  /// Why the worker must not become a rank yet; null: it may. Valid until the next event.
  const Bar* bar_of(const Worker& worker, Instant now) const {
    const auto found = bars_.find(worker.id.host_id);
    const bool is_barred = found != bars_.end() && !worker.progress.has_trained() && found->second.until > now;
    return is_barred ? &found->second : nullptr;
  }

 private:
  std::chrono::milliseconds least_gap_;
  std::chrono::seconds least_bar_;
  std::chrono::seconds longest_bar_;
  int gaps_ = 1;  ///< time from the last resize to the next, in least gaps
  std::optional<Instant> resized_at_;
  Deadline::Clock::duration pause_{};  ///< how long all ranks waited when newcomers joined last
  std::map<std::string, Bar> bars_;    ///< bars by host id
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
