#pragma once
/// @file
/// Failure analysis: the first failed worker of a job, from the ends of all workers, and its report; pure.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/process/exit_codes.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/supervise/exit_status.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// End of a worker. Lists of ends are in the order in which the launcher noticed them.
struct WorkerEnd {
  int rank = 0;
  ExitStatus status;
  bool left = true;           ///< it had left the job before it ended
  bool stopped = false;       ///< it ended after the launcher had sent it SIGTERM or SIGKILL
  std::string explanation{};  ///< of the status, such as that of MemoryKills; usually empty

  /// False only for a worker that left the job and ended with exit code 0. Exit code 0 without leaving is a loss.
  bool failed() const noexcept { return status != ExitStatus{} || !left; }

  /// Exit was caused by another rank's failure.
  bool is_secondary() const noexcept { return status == ExitStatus{exit_code_job_failed, 0}; }

  /// Candidate for the root cause.
  bool is_primary() const noexcept { return failed() && !stopped && !is_secondary(); }

  /// Exit code 0 without leaving must not look like success.
  int exit_code() const noexcept { return status == ExitStatus{} && !left ? 1 : status.exit_code(); }

  std::string text() const {
    return status == ExitStatus{} && !left ? "exit code 0 before it had left the job" : status.text() + explanation;
  }
};

inline void fields(Serializer& of, WorkerEnd& end) {
  of.number(end.rank);
  of.number(end.status.code);
  of.number(end.status.signal);
  of.flag(end.left);
  of.flag(end.stopped);
  of.text(end.explanation, 128);
}

/// The end that caused the job's failure, or nullopt if no worker failed. The first match counts:
///   1. a primary end of the rank that the store's first cause names (for ends that were noticed at the same time)
///   2. the first primary end
///   3. the first failed end of a worker that the launcher had not stopped
///   4. the first failed end
inline std::optional<WorkerEnd> first_failure(const std::vector<WorkerEnd>& ends, const std::optional<Cause>& cause) {
  const auto first_that = [&ends](auto holds) {
    const auto found = std::find_if(ends.begin(), ends.end(), holds);
    return found == ends.end() ? std::nullopt : std::optional<WorkerEnd>(*found);
  };
  std::optional<WorkerEnd> first =
      first_that([&](const WorkerEnd& end) { return end.is_primary() && cause && cause->rank == end.rank; });
  first = first ? first : first_that([](const WorkerEnd& end) { return end.is_primary(); });
  first = first ? first : first_that([](const WorkerEnd& end) { return end.failed() && !end.stopped; });
  return first ? first : first_that([](const WorkerEnd& end) { return end.failed(); });
}

/// "rank 2 on host gpu-a failed first: killed by signal 9 (SIGKILL)". If no end is primary, the store's cause.
inline std::string failure_sentence(const WorkerEnd& first, const std::optional<Cause>& cause, std::string_view host) {
  return first.is_primary() || !cause
             ? format_text("rank {} on host {} failed first: {}", {first.rank, host, first.text()})
             : format_text("the job failed: {}", {cause->sentence()});
}

/// Lines for stderr: the rank and host that failed first, its exit status, the ranks that failed because of it, and its
/// last output. Pure.
/// @param secondary the ranks that ended with exit_code_job_failed
/// @param last_lines the last lines that the first failed rank wrote to stderr
inline std::vector<std::string> failure_report(const WorkerEnd& first, std::vector<int> secondary,
                                               const std::optional<Cause>& cause, std::string_view host,
                                               const std::vector<std::string>& last_lines) {
  std::vector<std::string> lines{failure_sentence(first, cause, host)};
  if (first.is_primary() && cause && cause->rank != first.rank) {
    lines.push_back(format_text("the first cause that the ranks were notified of: {}", {cause->sentence()}));
  }
  std::sort(secondary.begin(), secondary.end());
  if (!cause) {
    secondary.erase(std::remove(secondary.begin(), secondary.end(), first.rank), secondary.end());
  }
  if (!secondary.empty()) {
    lines.push_back(format_text("failed because of it, with exit code {}: {}",
                                {exit_code_job_failed, rendezvous::rank_list(secondary)}));
  }
  if (!last_lines.empty()) {
    lines.push_back(format_text("the last lines that rank {} wrote to stderr:", {first.rank}));
    for (const std::string& line : last_lines) {
      lines.push_back(format_text("    {}", {line}));
    }
  }
  return lines;
}

/// One line for a job that ended because of a signal to the launcher.
inline std::string stop_report(int signal, const std::optional<WorkerEnd>& first, std::string_view host) {
  const std::string end = first ? format_text("rank {} on host {} ended first: {}", {first->rank, host, first->text()})
                                : "all of them ended well";
  return format_text("{} was forwarded to the workers; {}", {signal_name(signal), end});
}

}  // namespace DTRAIN_NAMESPACE::launch
