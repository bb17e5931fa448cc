#pragma once
/// @file
/// What an attempt came to on all nodes together: a pure function of how it ended on each.

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/core/exit_codes.hpp"
#include "dtrain/launch/node_end.hpp"
#include "dtrain/launch/report.hpp"
#include "dtrain/launch/restart_policy.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// The same on every launcher of the job. A record (see record.hpp).
struct JobVerdict {
  int exit_code = 0;
  bool again = false;               ///< the workers are started again
  std::vector<std::string> report;  ///< what every launcher says on stderr

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    fields.number(self.exit_code);
    fields.flag(self.again);
    fields.texts(self.report);
  }
};

/// What the nodes fell over; null where all is well. Of several the one that the store's first cause names, then the
/// one that was told first, then that of the lowest node; ends that are nobody's fault come last.
/// @param told the rank whose failure a launcher told the others first; -1 for none
inline const NodeEnd* first_node(const std::vector<NodeEnd>& nodes, const std::optional<Cause>& cause, int told) {
  const auto rank_of = [](const NodeEnd& node) { return node.first->rank; };
  const auto weight = [&](const NodeEnd& node) {
    const bool named = cause && cause->rank == rank_of(node);
    return !node.first->is_primary() ? (node.first->stopped ? 4 : 3) : named ? 0 : told == rank_of(node) ? 1 : 2;
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
inline JobVerdict judge(const std::vector<NodeEnd>& nodes, const std::optional<Cause>& cause, int told,
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
  const NodeEnd* const node = first_node(nodes, cause, told);
  JobVerdict verdict;
  if (node != nullptr) {
    verdict.exit_code = node->first->exit_code();
    if (stop_signal == 0 && cause && !node->first->is_primary()) {
      // It was ended by a launcher or fell with the others; also a rank that threw, before it had exited by itself.
      verdict.exit_code = cause->kind == CauseKind::exception ? exit_code_exception : exit_code_job_failed;
    }
  } else if (abandoned) {
    verdict.exit_code = 128 + SIGKILL;
  }
  if (stop_signal != 0 && node == nullptr && !started) {
    verdict.exit_code = 128 + stop_signal;
    verdict.report = {signal_name(stop_signal) + " came before the workers were started"};
    return verdict;
  }
  if (stop_signal != 0) {
    verdict.report = {stop_report(stop_signal, node != nullptr ? node->first : std::nullopt,
                                  node != nullptr ? node->host : std::string())};
    return verdict;
  }
  if (node != nullptr) {
    verdict.report = failure_report(*node->first, secondary, cause, node->host, node->last_lines);
    verdict.again = policy.again(*node->first, attempt, interrupted);
    if (verdict.again) {
      verdict.report.push_back(policy.announcement(attempt + 1, failure_sentence(*node->first, cause, node->host)));
    }
  }
  return verdict;
}

}  // namespace DTRAIN_NAMESPACE::launch
