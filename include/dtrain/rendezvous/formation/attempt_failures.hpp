#pragma once
/// @file
/// AttemptFailures of a FormationState: what commits, failures and errors mean for an elastic job's workers, hosts and
/// end.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/formation/announced_errors.hpp"
#include "dtrain/rendezvous/formation/failure_history.hpp"
#include "dtrain/rendezvous/formation/formation_messages.hpp"
#include "dtrain/rendezvous/formation/formation_options.hpp"
#include "dtrain/rendezvous/formation/formation_workers.hpp"
#include "dtrain/rendezvous/formation/newcomer_limits.hpp"
#include "dtrain/rendezvous/formation/weights_summary.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Each event returns the cause with which the job ends, or nullopt. Threads: one.
/// @tparam Sink as that of FormationState, which outlives this: `send(connection, message)` and `warn(sentence)`
template <class Sink>
class AttemptFailures {
 public:
  using Instant = Deadline::Clock::time_point;

  AttemptFailures(Sink& sink, const FormationOptions& options)
      : sink_(sink), limits_(options.least_resize_gap, options.least_bar, options.longest_bar), history_(options) {}

  const FailureHistory<>& history() const noexcept { return history_; }
  NewcomerLimits<>& limits() noexcept { return limits_; }
  std::chrono::milliseconds pause() const noexcept { return history_.pause(); }

  void on_attempt(std::uint64_t attempt, Instant now) {
    attempt_ = attempt;
    formed_at_ = now;
    weights_.reset();
    history_.on_attempt();
  }

  /// @param failed the attempt in which the step was committed has failed since
  void on_commit(Worker& worker, bool failed) {
    history_.on_commit(failed);
    if (std::exchange(worker.is_newcomer, false) && !failed) limits_.on_success(worker.id.host_id);
  }

  /// The weights of a rank after the attempt's first step.
  std::optional<Cause> on_weights(const Worker& worker, const WeightsSummary& weights) {
    if (weights.digest == 0) return std::nullopt;  // not compared
    weights_ = weights_.value_or(weights);
    if (weights_->digest == weights.digest) return std::nullopt;
    const std::string difference = format_text(
        "the weights of rank {} on host {} differ from another rank's after the first step of attempt {}, "
        "in which a worker received the state",
        {worker.rank, worker.host, attempt_});
    if (!differs_by_rounding(*weights_, weights)) {
      return Cause{
          CauseKind::disagreement, worker.rank, worker.host,
          format_text("{}; give keep() all that a step writes (DTRAIN_CHECK_VALUES=0 compares nothing)", {difference})};
    }
    if (!std::exchange(has_warned_of_rounding_, true)) {
      sink_.warn(
          format_text("{}, but by no more than rounding: the ranks' processors, libraries or numbers of threads "
                      "round a step differently, and their weights drift apart slowly",
                      {difference}));
    }
    return std::nullopt;
  }

  /// The attempt has failed. @param origin worker of the cause's rank; null: there is none
  std::optional<Cause> on_failure(const Cause& cause, Worker* origin, const std::vector<Worker*>& members,
                                  Instant now) {
    const std::optional<Cause> last = history_.on_failure(cause);
    if (history_.without_commit() > 0 && !last) {
      const std::string when = pause().count() == 0 ? "at once" : format_text("in {}", {duration_text(pause())});
      sink_.warn(format_text("attempt {} has ended without a commit: {}; the ranks are formed anew {}",
                             {attempt_, cause.sentence(), when}));
    }
    if (cause.kind == CauseKind::timeout && !history_.committed_here()) {  // maybe no data reaches the newcomers
      for (const Worker* each : members) {
        if (each->is_newcomer) limits_.on_timeout(each->id.host_id, attempt_, cause, now - formed_at_, now);
      }
    } else if (origin != nullptr && origin->is_newcomer) {
      limits_.on_broken(origin->id.host_id, attempt_, cause, now);
      if (cause.kind == CauseKind::disagreement) origin->unlike = cause.text;
    }
    return last;
  }

  /// A worker that could not take part in the last attempt explains why.
  void on_explained(const Worker& worker, const Cause& error) { history_.explain(worker.rank, error.text); }

  /// A worker ends by its error.
  std::optional<Cause> on_own_error(const Worker& worker, const std::string& text) {
    return history_.on_own_error({CauseKind::exception, worker.rank, worker.host, text});
  }

  /// Ends, rejects and keeps ranks of the failed attempt as attribute_errors() says.
  std::optional<Cause> attribute(const std::vector<Worker*>& members, Instant now) {
    const ErrorAttribution found = attribute_errors(members, history_);
    if (!found.is_decided()) return std::nullopt;
    std::optional<Cause> last = found.of_job;
    for (Worker* each : found.rejected) {
      each->unlike = found.error.text;  // it may come later
      if (each->standing == Standing::waiting) exclude(*each, Refused{each->unlike}, now);
    }
    for (Worker* each : found.ends) {
      each->error = each->thrown ? each->thrown->text : found.error.text;
      exclude(*each, OwnError{each->error}, now);
      const std::optional<Cause> repeated = on_own_error(*each, each->error);
      last = last ? last : repeated;
    }
    if (found.is_shared) {
      history_.on_shared_error(found.error.text);
      sink_.warn(format_text("every rank of attempt {} failed alike: {}", {attempt_, found.error.text}));
    }
    for (Worker* each : members) {
      each->thrown.reset();
    }
    return last;
  }

 private:
  /// The worker's connection stays until the worker ends it.
  void exclude(Worker& worker, const ToWorker& message, Instant now) {
    worker.standing = Standing::excluded;
    worker.since = now;
    sink_.send(worker.connection, message);
  }

  Sink& sink_;
  NewcomerLimits<> limits_;
  FailureHistory<> history_;
  std::uint64_t attempt_ = 0;
  Instant formed_at_{};
  std::optional<WeightsSummary> weights_;  ///< the weights of the rank that committed a step first in the attempt
  bool has_warned_of_rounding_ = false;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
