#pragma once
/// @file
/// RankStatuses of a JobServer: the latest status of each rank, and their table in the log after a failure.

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/events.hpp"
#include "dtrain/async/task.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"
#include "dtrain/rendezvous/server_state/rank_table.hpp"
#include "dtrain/rendezvous/server_state/status_table.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// The table is printed once: when each rank that is connected has sent its status after the failure, 200 ms after it
/// at the latest, or when this object ends. No end of a job waits for it. Lifetime: the loop outlives it. Threads: the
/// loop's.
class RankStatuses {
 public:
  /// @param goes_on_after_loss StoreJobOptions::goes_on_after_loss
  RankStatuses(async::EventLoop& loop, bool goes_on_after_loss)
      : loop_(loop), goes_on_after_loss_(goes_on_after_loss), changed_(loop) {}
  RankStatuses(const RankStatuses&) = delete;
  RankStatuses& operator=(const RankStatuses&) = delete;
  ~RankStatuses() {
    printing_.cancel();
    print();
  }

  void note(int rank, const std::string& host, RankStatus status) {
    ranks_.insert_or_assign(rank, LatestStatus{host, std::move(status), Deadline::Clock::now(), cause_.has_value()});
    if (cause_) {
      changed_.set();
    } else if (rank == ranks_.begin()->first) {  // once in a round
      print_if_nothing_moves();
    }
  }

  /// The rank's connection has ended before it has left.
  void disconnected(int rank) {
    if (const auto found = ranks_.find(rank); found != ranks_.end()) {
      found->second.has_ended = true;
      found->second.is_lost = !cause_ || (cause_->kind == CauseKind::lost && cause_->rank == rank);
      changed_.set();
    }
  }
  /// A rank that has left does nothing any more.
  void left(int rank) {
    ranks_.erase(rank);
    changed_.set();
  }

  /// The job has failed. Only the first cause counts.
  void failed(const Cause& cause) {
    const bool is_told = cause.kind == CauseKind::timeout || cause.kind == CauseKind::disagreement ||
                         cause.kind == CauseKind::exception || (cause.kind == CauseKind::lost && !goes_on_after_loss_);
    if (!is_told || cause_) return;
    cause_ = cause;
    if (cause.kind == CauseKind::lost) disconnected(cause.rank);
    printing_ = loop_.spawn(print_when_complete());
  }

  /// Prints what there is, unless the table was printed.
  void print() noexcept;

 private:
  struct LatestStatus {
    std::string host;
    RankStatus status;
    Deadline::Clock::time_point received;
    bool is_last = false;  ///< sent after the failure
    bool has_ended = false;
    bool is_lost = false;
  };

  bool is_complete() const noexcept {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const auto& each) { return each.second.is_last || each.second.has_ended; });
  }

  async::Task<void> print_when_complete() {
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(200));
    while (!is_complete() && !deadline.passed()) {
      co_await changed_.wait(deadline);
    }
    print();
  }

  void print_if_nothing_moves();
  std::vector<ReportedStatus> reported() const;
  static void print(const std::string& heading, const std::vector<ReportedStatus>& ranks) {
    log(LogLevel::warning, heading);
    for (const std::string& line : status_table(ranks))
      log(LogLevel::warning, line);
  }

  async::EventLoop& loop_;
  const bool goes_on_after_loss_;
  std::map<int, LatestStatus> ranks_;
  std::optional<Cause> cause_;
  bool has_printed_ = false;
  std::chrono::milliseconds notice_after_{10000};  ///< how long nothing moves until a table says so
  async::AutoResetEvent changed_;
  async::TaskHandle printing_;  ///< last: destroyed before the members that it uses
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE::rendezvous {

DTRAIN_DEFINED std::vector<ReportedStatus> RankStatuses::reported() const {
  const auto now = Deadline::Clock::now();
  std::vector<ReportedStatus> ranks;
  for (const auto& [rank, entry] : ranks_) {
    const auto kind = entry.is_lost              ? ReportedStatus::Kind::lost
                      : cause_ && !entry.is_last ? ReportedStatus::Kind::silent
                                                 : ReportedStatus::Kind::current;
    ranks.push_back({rank, entry.host, entry.status, kind,
                     std::chrono::duration_cast<std::chrono::milliseconds>(now - entry.received)});
  }
  return ranks;
}

DTRAIN_DEFINED void RankStatuses::print() noexcept {
  if (!cause_ || std::exchange(has_printed_, true)) return;
  try {
    const std::vector<ReportedStatus> ranks = reported();
    const bool has_worked = std::any_of(ranks.begin(), ranks.end(), [](const ReportedStatus& rank) {
      const auto& channels = rank.status.channels;
      return rank.status.step > 0 || std::any_of(channels.begin(), channels.end(),
                                                 [](const RankStatus::Channel& each) { return each.sequence > 0; });
    });
    if (ranks.size() > 1 && has_worked) print(status_heading(*cause_), ranks);
  } catch (...) {
    // There is no memory for the table.
  }
}

/// As WaitNotice: after each table, the next one is due after twice the time.
DTRAIN_DEFINED void RankStatuses::print_if_nothing_moves() {
  std::uint64_t unchanged = static_cast<std::uint64_t>(notice_after_.count());
  bool waits = false;
  for (const auto& [rank, entry] : ranks_) {
    if (entry.status.unchanged_ms < unchanged) return;
    waits = waits || (!entry.status.channels.empty() && entry.status.channels.front().is_in_operation);
  }
  if (!waits || ranks_.size() < 2) return;
  print(format_text("nothing has moved for {}; what each rank does:", {duration_text(notice_after_)}), reported());
  notice_after_ *= 2;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

#endif  // DTRAIN_DEFINITIONS
