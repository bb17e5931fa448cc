#pragma once
/// @file
/// JobResult: exit code, report and restart decision, from the ends of all nodes' workers. first_failure(): the first
/// failed worker. Pure.

#include <algorithm>
#include <csignal>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/exit_status.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// End of a worker. Lists of ends are in the order in which the launcher noticed them.
struct WorkerEnd {
  int rank = 0;
  ExitStatus status;
  bool left = true;           ///< it had left the job before it ended
  bool stopped = false;       ///< it ended after the launcher had sent it SIGTERM or SIGKILL
  std::string explanation{};  ///< explanation of the status (MemoryKills); usually empty

  /// False only for a worker that left the job and ended with exit code 0. Exit code 0 without leaving is a loss.
  bool failed() const noexcept { return status != ExitStatus{} || !left; }

  /// Exit was caused by another rank's failure.
  bool is_secondary() const noexcept { return status == ExitStatus{exit_code_job_failed, 0}; }

  /// Candidate for the root cause.
  bool is_primary() const noexcept { return failed() && !stopped && !is_secondary(); }

  /// Exit code 0 without leaving must not look like success.
  int exit_code() const noexcept { return status == ExitStatus{} && !left ? 1 : status.exit_code(); }

  std::string text() const {
    return status == ExitStatus{} && !left
               ? "exit code 0 before it had left the job; return from the rank's function in place of exit(0)"
               : status.text() + explanation;
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

/// Place of a failed end among those that may be the cause of the job's failure; the lowest place counts:
///   0. primary end of the rank that the store's first cause names (for ends that were noticed at the same time)
///   1. primary end of the rank `first_reported`
///   2. other primary ends
///   3. other ends of workers that the launcher had not stopped
///   4. ends of workers that the launcher had stopped
/// @param first_reported the rank whose failure a launcher reported to the others first; -1 for none
inline int cause_place(const WorkerEnd& end, const std::optional<Cause>& cause, int first_reported) {
  if (!end.is_primary()) {
    return end.stopped ? 4 : 3;
  }
  return cause && cause->rank == end.rank ? 0 : first_reported == end.rank ? 1 : 2;
}

/// The end that caused the job's failure: the first one of the lowest place; nullopt if no worker failed.
inline std::optional<WorkerEnd> first_failure(const std::vector<WorkerEnd>& ends, const std::optional<Cause>& cause) {
  std::optional<WorkerEnd> first;
  for (const WorkerEnd& end : ends) {
    if (end.failed() && (!first || cause_place(end, cause, -1) < cause_place(*first, cause, -1))) {
      first = end;
    }
  }
  return first;
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

/// Report of a launcher on its node, for the job's result.
struct NodeEnd {
  DTRAIN_MEMBERS_NOT_INLINED(NodeEnd);

  int node = 0;
  std::string host;
  std::optional<WorkerEnd> first;       ///< first_failure of the node's workers
  std::vector<int> secondary;           ///< the ranks that ended with exit_code_job_failed
  std::vector<std::string> last_lines;  ///< the last lines that `first` wrote to stderr
  int stop_signal = 0;                  ///< signal of the first stop request (see SignalForwarder), or 0
  bool interrupted = false;             ///< a signal arrived after which the job is not restarted
  bool started = true;                  ///< false if the job was stopped before it had workers
  bool abandoned = false;               ///< a killed process did not end in time
};

/// Lines as a program wrote them.
inline void line_fields(Serializer& of, std::vector<std::string>& lines) {
  using rendezvous::max_value_bytes;
  of.list(lines, 0, max_value_bytes, [&of](std::string& line) { of.raw_text(line, max_value_bytes); });
}

inline void fields(Serializer& of, NodeEnd& end) {
  of.number(end.node);
  of.text(end.host, rendezvous::max_name_bytes);
  of.maybe(end.first, [&of](WorkerEnd& first) { fields(of, first); });
  of.list(end.secondary, 0, rendezvous::max_world_size, [&of](int& rank) { of.number(rank); });
  line_fields(of, end.last_lines);
  of.number(end.stop_signal);
  of.flag(end.interrupted);
  of.flag(end.started);
  of.flag(end.abandoned);
}

/// The same on every launcher of the job.
struct JobResult {
  int exit_code = 0;
  bool restart = false;             ///< the workers are started again
  std::vector<std::string> report;  ///< lines that every launcher prints on stderr
};

inline void fields(Serializer& of, JobResult& result) {
  of.number(result.exit_code);
  of.flag(result.restart);
  line_fields(of, result.report);
}

/// The node that failed first, the lowest one of the lowest cause_place(); null if none failed.
inline const NodeEnd* first_node(const std::vector<NodeEnd>& nodes, const std::optional<Cause>& cause,
                                 int first_reported) {
  const NodeEnd* best = nullptr;
  for (const NodeEnd& node : nodes) {
    if (node.first && (best == nullptr || cause_place(*node.first, cause, first_reported) <
                                              cause_place(*best->first, cause, first_reported))) {
      best = &node;
    }
  }
  return best;
}

/// @param nodes one for each node, in order
/// @param max_restarts --max-restarts @param attempt counts from 0
inline JobResult decide_result(const std::vector<NodeEnd>& nodes, const std::optional<Cause>& cause, int first_reported,
                               int max_restarts, int attempt) {
  int stop_signal = 0;
  bool interrupted = false;
  bool started = true;
  bool abandoned = false;
  std::vector<int> secondary;
  for (const NodeEnd& node : nodes) {
    stop_signal = stop_signal == 0 ? node.stop_signal : stop_signal;
    interrupted = interrupted || node.interrupted || node.stop_signal != 0;
    started = started && node.started;
    abandoned = abandoned || node.abandoned;
    secondary.insert(secondary.end(), node.secondary.begin(), node.secondary.end());
  }
  const NodeEnd* const node = first_node(nodes, cause, first_reported);
  JobResult result;
  if (node != nullptr) {
    result.exit_code = node->first->exit_code();
    if (stop_signal == 0 && cause && !node->first->is_primary()) {
      // A launcher stopped the rank, or it failed with the others. This may be a rank that threw: the launcher stopped
      // it before it exited by itself.
      result.exit_code = cause->kind == CauseKind::exception ? exit_code_exception : exit_code_job_failed;
    }
  } else if (abandoned) {
    result.exit_code = 128 + SIGKILL;
  }
  if (stop_signal != 0 && node == nullptr && !started) {
    result.exit_code = 128 + stop_signal;
    result.report = {signal_name(stop_signal) + " came before the workers were started"};
    return result;
  }
  if (stop_signal != 0) {
    result.report = {stop_report(stop_signal, node != nullptr ? node->first : std::nullopt,
                                 node != nullptr ? node->host : std::string())};
    return result;
  }
  if (node != nullptr) {
    result.report = failure_report(*node->first, secondary, cause, node->host, node->last_lines);
    // After a usage error, the next attempt would have the same command line and environment.
    const bool is_usage = node->first->exit_code() == exit_code_usage;
    result.restart = !interrupted && attempt < max_restarts && !is_usage;
    if (result.restart) {
      result.report.push_back(
          format_text("attempt {} of {} begins: {}", {attempt + 2, max_restarts + 1, result.report.front()}));
    }
  }
  return result;
}

}  // namespace DTRAIN_NAMESPACE::launch
