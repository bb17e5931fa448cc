#pragma once
/// @file
/// Failure report: the lines that the launcher prints about a failed job.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/process/exit_codes.hpp"
#include "dtrain/launch/supervise/failure_analysis.hpp"
#include "dtrain/rendezvous/membership/rank_list.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// "rank 2 on host gpu-a failed first: killed by signal 9 (SIGKILL)". If no end is primary, the store's cause.
inline std::string failure_sentence(const WorkerEnd& first, const std::optional<Cause>& cause, std::string_view host) {
  return first.is_primary() || !cause
             ? "rank " + std::to_string(first.rank) + " on host " + std::string(host) + " failed first: " + first.text()
             : "the job failed: " + cause->sentence();
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
    lines.push_back("the first cause that the ranks were notified of: " + cause->sentence());
  }
  std::sort(secondary.begin(), secondary.end());
  if (!cause) {
    secondary.erase(std::remove(secondary.begin(), secondary.end(), first.rank), secondary.end());
  }
  if (!secondary.empty()) {
    lines.push_back("failed because of it, with exit code " + std::to_string(exit_code_job_failed) + ": " +
                    rendezvous::rank_list(secondary));
  }
  if (!last_lines.empty()) {
    lines.push_back("the last lines that rank " + std::to_string(first.rank) + " wrote to stderr:");
    for (const std::string& line : last_lines) {
      lines.push_back("    " + line);
    }
  }
  return lines;
}

/// One line for a job that ended because of a signal to the launcher.
inline std::string stop_report(int signal, const std::optional<WorkerEnd>& first, std::string_view host) {
  std::string line = signal_name(signal) + " was forwarded to the workers; ";
  return first ? line + "rank " + std::to_string(first->rank) + " on host " + std::string(host) +
                     " ended first: " + first->text()
               : line + "all of them ended well";
}

}  // namespace DTRAIN_NAMESPACE::launch
