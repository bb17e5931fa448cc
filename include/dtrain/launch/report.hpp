#pragma once
/// @file
/// What the launcher says about a job that failed.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/launch/tail.hpp"
#include "dtrain/launch/verdict.hpp"
#include "dtrain/rendezvous/rank_list.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Lines for stderr: which rank on which host failed first, how, what it wrote last, and who fell because of it. Pure.
/// @param tail the last lines that the first one wrote to stderr
inline std::vector<std::string> failure_report(const WorkerEnd& first, const std::vector<WorkerEnd>& ends,
                                               const std::optional<Cause>& cause, std::string_view host,
                                               const Tail& tail) {
  const std::string who = "rank " + std::to_string(first.rank) + " on host " + std::string(host);
  std::vector<std::string> lines;
  if (first.is_secondary() && cause) {
    lines.push_back("the job failed: " + cause->sentence());
  } else {
    lines.push_back(who + " failed first: " + first.text());
    if (cause && cause->rank != first.rank) {
      lines.push_back("the first cause that the ranks were told: " + cause->sentence());
    }
  }
  std::vector<int> secondary;
  for (const WorkerEnd& end : ends) {
    if (end.is_secondary() && (end.rank != first.rank || cause)) {
      secondary.push_back(end.rank);
    }
  }
  std::sort(secondary.begin(), secondary.end());
  if (!secondary.empty()) {
    lines.push_back("fell because of it, with exit code " + std::to_string(exit_code_peer_lost) + ": " +
                    rendezvous::rank_list(secondary));
  }
  if (!tail.empty()) {
    lines.push_back("the last lines that rank " + std::to_string(first.rank) + " wrote to stderr:");
    for (const std::string& line : tail.lines()) {
      lines.push_back("    " + line);
    }
  }
  return lines;
}

/// One line where the job ended because the launcher was told to end it.
inline std::string stop_report(int signal, const std::optional<WorkerEnd>& first, std::string_view host) {
  std::string line = signal_name(signal) + " was forwarded to the workers; ";
  return first ? line + "rank " + std::to_string(first->rank) + " on host " + std::string(host) +
                     " ended first: " + first->text()
               : line + "all of them ended well";
}

}  // namespace DTRAIN_NAMESPACE::launch
