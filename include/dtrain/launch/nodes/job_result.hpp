#pragma once
/// @file
/// Job result: exit code, report and restart decision, from the ends of an attempt on all nodes; pure.

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/core/process/exit_codes.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/supervise/failure_analysis.hpp"
#include "dtrain/rendezvous/protocol/limits.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// What a launcher reports of its node, for the job's result.
struct NodeEnd {
  DTRAIN_MEMBERS_NOT_INLINED(NodeEnd);

  int node = 0;
  std::string host;
  std::optional<WorkerEnd> first;       ///< first_failure of the node's workers
  std::vector<int> secondary;           ///< the ranks that ended with exit_code_job_failed
  std::vector<std::string> last_lines;  ///< that `first` wrote to stderr
  int stop_signal = 0;                  ///< SIGINT or SIGTERM that requested the job's end, or 0
  bool interrupted = false;             ///< a signal arrived after which the job is not restarted
  bool started = true;                  ///< false if the job was stopped before it had workers
  bool abandoned = false;               ///< a killed process did not end: the kernel holds it
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

/// --max-restarts. Attempts count from 0.
struct RestartPolicy {
  static constexpr int most_restarts = 10000;

  int max_restarts = 0;

  /// False after a usage error: the next attempt would have the same command line and environment.
  /// @param first the end that caused the attempt's failure
  /// @param interrupted whether a signal requested the job's end
  bool should_restart(const WorkerEnd& first, int attempt, bool interrupted) const noexcept {
    return !interrupted && attempt < max_restarts && first.exit_code() != exit_code_usage;
  }

  /// "attempt 2 of 4 begins: WHY"
  std::string announcement(int attempt, const std::string& why) const {
    return format_text("attempt {} of {} begins: {}", {attempt + 1, max_restarts + 1, why});
  }
};

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

/// The node that failed first; null if none failed. The lowest node of the first non-empty row counts:
///   1. primary end of the rank that the store's first cause names
///   2. primary end of the rank `first_reported`
///   3. other primary ends
///   4. secondary ends of workers that the launcher had not stopped
///   5. ends of workers that the launcher had stopped
/// @param first_reported the rank whose failure a launcher reported to the others first; -1 for none
inline const NodeEnd* first_node(const std::vector<NodeEnd>& nodes, const std::optional<Cause>& cause,
                                 int first_reported) {
  const auto rank_of = [](const NodeEnd& node) { return node.first->rank; };
  const auto weight = [&](const NodeEnd& node) {
    const bool named = cause && cause->rank == rank_of(node);
    return !node.first->is_primary()         ? (node.first->stopped ? 4 : 3)
           : named                           ? 0
           : first_reported == rank_of(node) ? 1
                                             : 2;
  };
  const NodeEnd* best = nullptr;
  for (const NodeEnd& node : nodes) {
    if (node.first && (best == nullptr || weight(node) < weight(*best))) {
      best = &node;
    }
  }
  return best;
}

/// @param nodes one for each node, in order
/// @param attempt counts from 0
inline JobResult decide_result(const std::vector<NodeEnd>& nodes, const std::optional<Cause>& cause, int first_reported,
                               const RestartPolicy& policy, int attempt) {
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
    result.restart = policy.should_restart(*node->first, attempt, interrupted);
    if (result.restart) {
      result.report.push_back(policy.announcement(attempt + 1, failure_sentence(*node->first, cause, node->host)));
    }
  }
  return result;
}

}  // namespace DTRAIN_NAMESPACE::launch
