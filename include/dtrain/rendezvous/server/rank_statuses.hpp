#pragma once
/// @file
/// RankStatuses of a JobServer: the latest status of each rank, and what the log says of them: their table after a
/// failure, long waits, slow ranks.

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dtrain/async/events.hpp"
#include "dtrain/async/task.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"
#include "dtrain/rendezvous/server_state/slow_ranks.hpp"
#include "dtrain/rendezvous/server_state/status_table.hpp"
#include "dtrain/rendezvous/server_state/value_digests.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// After a failure the table is made once: when each rank that is connected has sent its status after the failure,
/// 200 ms after it at the latest, or when this object ends. No end of a job waits for it. Lifetime: the loop outlives
/// it. Threads: the loop's.
class RankStatuses {
 public:
  /// @param goes_on_after_loss StoreJobOptions::goes_on_after_loss @param prints StoreJobOptions::prints_statuses
  /// @param straggler_factor Limits::straggler_factor
  RankStatuses(async::EventLoop& loop, bool goes_on_after_loss, bool prints = true, double straggler_factor = 0)
      : loop_(loop),
        goes_on_after_loss_(goes_on_after_loss),
        prints_(prints),
        slow_ranks_(straggler_factor),
        changed_(loop) {}
  RankStatuses(const RankStatuses&) = delete;
  RankStatuses& operator=(const RankStatuses&) = delete;
  ~RankStatuses() {
    completing_.cancel();
    complete();
    tell_finding();
  }

  /// @name Events of the job. Without memory an event is dropped.
  /// @{
  void joined(int rank, const std::string& host) noexcept;
  void received(int rank, RankStatus status) noexcept;
  /// The rank's connection has ended before it has left.
  void disconnected(int rank) noexcept;
  void left(int rank) noexcept;
  /// Only the first cause counts.
  void failed(const Cause& cause) noexcept;
  /// The job is to end: what follows is no failure.
  void stopped() noexcept { has_ended_ = true; }
  /// @}

  /// For a process that asks: a line that counts ranks and steps, and the table.
  std::vector<std::string> lines() const;

  /// Without `prints`, after a failure, once: the line above the table, and the table; empty if there is nothing to
  /// tell.
  std::vector<std::string> take_table() {
    complete();
    return std::exchange(table_, {});
  }

 private:
  static constexpr std::chrono::seconds longest_silence{5};

  struct LatestStatus {
    std::string host{};
    std::optional<RankStatus> status{};
    Deadline::Clock::time_point received = Deadline::Clock::now();
    double steps_per_second = 0;
    std::uint32_t finding = 0;  ///< number of its last finding
    bool is_last = false;       ///< sent after the failure
    bool has_ended = false;
    bool is_lost = false;
  };

  bool is_complete() const noexcept {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const auto& each) { return each.second.is_last || each.second.has_ended; });
  }

  async::Task<void> wait_until_complete() {
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(200));
    while (!is_complete() && !deadline.passed()) {
      co_await changed_.wait(deadline);
    }
    complete();
  }

  void complete() noexcept;
  void tell_finding() noexcept;
  std::string finding_text();
  void make_table();
  void print_if_ranks_wait();
  std::vector<ReportedStatus> reported() const;

  async::EventLoop& loop_;
  const bool goes_on_after_loss_;
  const bool prints_;
  std::map<int, LatestStatus> ranks_;
  SlowRanks slow_ranks_;
  ValueDigests value_digests_;
  std::optional<Cause> cause_;  ///< why there is a table to print
  Deadline::Clock::time_point failed_at_{};
  bool has_ended_ = false;  ///< the job has failed or is to end
  bool has_table_ = false;  ///< table_ was made
  std::vector<std::string> table_;
  std::vector<std::pair<int, RankStatus::Finding>> findings_;             ///< ranks' findings that are not told yet
  Deadline finding_due_ = Deadline::after(std::chrono::milliseconds(0));  ///< when they are told together
  std::uint64_t told_step_ = 0;                                           ///< step of the finding that was told last
  std::chrono::milliseconds notice_after_{10000};                    ///< how long a rank waits until a table says so
  Deadline looked_ = Deadline::after(std::chrono::milliseconds(0));  ///< when waits are looked for again
  async::AutoResetEvent changed_;
  async::TaskHandle completing_;  ///< last: destroyed before the members that it uses
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE::rendezvous {

DTRAIN_DEFINED void RankStatuses::joined(int rank, const std::string& host) noexcept {
  try {
    ranks_.insert_or_assign(rank, LatestStatus{host});
    slow_ranks_.forget(rank);
    value_digests_.forget(rank);
  } catch (...) {
    // The rank has no line.
  }
}

DTRAIN_DEFINED void RankStatuses::received(int rank, RankStatus status) noexcept {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end() || found->second.is_last) return;
  LatestStatus& latest = found->second;
  constexpr std::uint64_t longest = std::uint64_t{1} << 40;  // so that no time from outside overflows
  status.unchanged_ms = std::min(status.unchanged_ms, longest);
  for (RankStatus::Channel& each : status.channels)
    each.unchanged_ms = std::min(each.unchanged_ms, longest);
  const auto now = Deadline::Clock::now();
  if (latest.status && status.step >= latest.status->step) {
    const double passed = std::chrono::duration<double>(now - latest.received).count();
    latest.steps_per_second = passed > 0 ? static_cast<double>(status.step - latest.status->step) / passed : 0;
  }
  latest.status = std::move(status);
  latest.received = now;
  latest.is_last = cause_.has_value();
  if (!cause_) latest.has_ended = latest.is_lost = false;  // it has joined again
  changed_.set();
  try {
    const RankStatus::Finding& finding = latest.status->finding;
    if (std::exchange(latest.finding, finding.number) != finding.number) {
      if (findings_.empty()) finding_due_ = Deadline::after(std::chrono::milliseconds(1500));  // as others may come
      findings_.emplace_back(rank, finding);
      findings_.back().second.text = sanitize(finding.text);
    }
    if (has_ended_) return;
    if (!findings_.empty() && finding_due_.passed()) tell_finding();
    for (const std::string& line :
         slow_ranks_.receive(rank, latest.host, *latest.status, ranks_.size(), Deadline::Clock::now()))
      log(LogLevel::warning, line);
    const std::string text = value_digests_.receive(rank, latest.status->values, ranks_.size());
    if (!text.empty()) log(LogLevel::warning, text);
    if (!looked_.passed()) return;
    looked_ = Deadline::after(std::chrono::milliseconds(900));
    print_if_ranks_wait();
  } catch (...) {
    // There is no memory for the lines.
  }
}

DTRAIN_DEFINED void RankStatuses::disconnected(int rank) noexcept {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  found->second.has_ended = true;
  found->second.is_lost = !cause_ || (cause_->kind == CauseKind::lost && cause_->rank == rank);
  changed_.set();
}

DTRAIN_DEFINED void RankStatuses::left(int rank) noexcept {
  if (const auto found = ranks_.find(rank); cause_ && found != ranks_.end()) {
    found->second.has_ended = true;
  } else {
    ranks_.erase(rank);
  }
  slow_ranks_.forget(rank);
  value_digests_.forget(rank);
  changed_.set();
}

DTRAIN_DEFINED void RankStatuses::failed(const Cause& cause) noexcept {
  const bool is_told = cause.kind == CauseKind::timeout || cause.kind == CauseKind::disagreement ||
                       cause.kind == CauseKind::exception || (cause.kind == CauseKind::lost && !goes_on_after_loss_);
  if (std::exchange(has_ended_, true) || !is_told) return;
  try {
    cause_ = cause;
    failed_at_ = Deadline::Clock::now();
    if (cause.kind == CauseKind::lost) disconnected(cause.rank);
    completing_ = loop_.spawn(wait_until_complete(), [](const std::exception_ptr&) {});  // the end makes the table
  } catch (...) {
    // There is no memory for the table.
  }
}

DTRAIN_DEFINED std::vector<ReportedStatus> RankStatuses::reported() const {
  const auto now = cause_ ? failed_at_ : Deadline::Clock::now();
  std::vector<ReportedStatus> ranks;
  for (const auto& [rank, latest] : ranks_) {
    using Kind = ReportedStatus::Kind;
    const auto age =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::max(now, latest.received) - latest.received);
    const bool is_silent = cause_ ? !latest.is_last : age > longest_silence;
    ranks.push_back({rank, latest.host, latest.status,
                     latest.is_lost     ? Kind::lost
                     : !is_silent       ? Kind::current
                     : latest.has_ended ? Kind::ended
                                        : Kind::silent,
                     age});
  }
  return ranks;
}

DTRAIN_DEFINED std::vector<std::string> RankStatuses::lines() const {
  constexpr std::size_t most_lines = 64;
  const double rate = ranks_.empty() ? 0 : ranks_.begin()->second.steps_per_second;
  std::vector<std::string> lines{
      format_text("{} {}, {} steps a second {}",
                  {ranks_.size(), ranks_.size() == 1 ? "rank" : "ranks", fixed_text(rate, 1), status_columns})};
  for (std::string& line : status_table(reported(), most_lines))
    lines.push_back(std::move(line));
  return lines;
}

DTRAIN_DEFINED void RankStatuses::make_table() {
  const std::vector<ReportedStatus> ranks = reported();
  const bool has_worked = std::any_of(ranks.begin(), ranks.end(), [](const ReportedStatus& rank) {
    return rank.status &&
           (rank.status->step > 0 || std::any_of(rank.status->channels.begin(), rank.status->channels.end(),
                                                 [](const RankStatus::Channel& each) { return each.called > 0; }));
  });
  if (ranks.size() < 2 || !has_worked) return;
  table_.push_back(status_heading(*cause_));
  for (std::string& line : status_table(ranks))
    table_.push_back(std::move(line));
}

/// The text of the earliest step's ranks; that of a sum only if there is no other. Takes all findings.
DTRAIN_DEFINED std::string RankStatuses::finding_text() {
  std::vector<std::pair<int, RankStatus::Finding>> findings = std::exchange(findings_, {});
  std::erase_if(findings, [this](const auto& each) {  // consequences of the finding that was told
    const RankStatus::Finding& found = each.second;
    return told_step_ > 0 && found.step >= told_step_ + (found.is_sum ? 0 : 1) && found.step <= told_step_ + 100;
  });
  const auto order = [](const auto& each) { return std::tuple(each.second.is_sum, each.second.step, each.first); };
  std::sort(findings.begin(), findings.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  if (findings.empty()) return {};
  const RankStatus::Finding& first = findings.front().second;
  std::vector<int> ranks, others;
  for (const auto& [rank, finding] : findings) {
    if (finding.is_sum == first.is_sum && finding.step == first.step) {
      (finding.text == first.text ? ranks : others).push_back(rank);
    }
  }
  told_step_ = first.step;
  if (first.is_sum) return first.text;
  std::string text = format_text("{}: {}", {rank_list(ranks, 8), first.text});
  if (!others.empty()) append_text(text, "; {} had others in that step", {rank_list(others, 8)});
  return text;
}

DTRAIN_DEFINED void RankStatuses::tell_finding() noexcept {
  try {
    if (const std::string text = finding_text(); !text.empty()) log(LogLevel::warning, text);
  } catch (...) {
    // There is no memory for the text.
  }
}

DTRAIN_DEFINED void RankStatuses::complete() noexcept {
  if (!cause_ || std::exchange(has_table_, true)) return;
  try {
    if (std::string text = finding_text(); !text.empty()) table_.push_back(std::move(text));
    make_table();
    if (!prints_ || table_.empty()) return;
    log(LogLevel::warning,
        format_text("{}: {}",
                    {goes_on_after_loss_ ? "an attempt of the job has ended" : "the job failed", cause_->sentence()}));
    for (const std::string& line : table_)
      log(LogLevel::warning, line);
    table_.clear();
  } catch (...) {
    // There is no memory for the table.
  }
}

/// As WaitNotice: after each table, the next one is due after twice the time.
DTRAIN_DEFINED void RankStatuses::print_if_ranks_wait() {
  const auto now = Deadline::Clock::now();
  std::vector<int> waiting;
  for (const auto& [rank, latest] : ranks_) {
    const auto age = now - latest.received;
    if (!latest.status || age > longest_silence) continue;
    const std::vector<RankStatus::Channel>& channels = latest.status->channels;
    if (std::any_of(channels.begin(), channels.end(), [&](const RankStatus::Channel& each) {
          return each.is_in_operation && std::chrono::milliseconds(each.unchanged_ms) + age >= notice_after_;
        })) {
      waiting.push_back(rank);
    }
  }
  if (waiting.empty() || ranks_.size() < 2) return;
  log(LogLevel::warning, format_text("{} {} waited for {}; what each rank does {}:",
                                     {rank_list(waiting, 8), waiting.size() == 1 ? "has" : "have",
                                      duration_text(notice_after_), status_columns}));
  for (const std::string& line : status_table(reported()))
    log(LogLevel::warning, line);
  constexpr std::chrono::hours longest(24 * 365);
  notice_after_ = std::min<std::chrono::milliseconds>(2 * notice_after_, longest);
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

#endif  // DTRAIN_DEFINITIONS
