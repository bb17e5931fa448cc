#pragma once
/// @file
/// FailureHistory: FormationState's record of an elastic job's failures and commits, and when they end the job. Pure.

#include <optional>
#include <string>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

class FailureHistory {
 public:
  /// @param most attempts in a row without a commit
  explicit FailureHistory(int most) : most_(most) {}

  bool has_committed() const noexcept { return has_committed_; }
  /// Whether a step of the present attempt, or of the last one, is known to be committed.
  bool committed_here() const noexcept { return committed_here_; }
  /// The first cause since the last commit; nullopt without a failure.
  const std::optional<Cause>& first_cause() const noexcept { return first_cause_; }

  void on_attempt() noexcept {
    failed_ = false;
    committed_here_ = false;
  }

  void on_commit() {
    has_committed_ = committed_here_ = true;
    without_commit_ = 0;
    if (!failed_) {
      first_cause_.reset();
      last_exception_.clear();
    }
  }

  /// An attempt has failed. @returns the cause with which the job ends; nullopt: the next attempt may form
  std::optional<Cause> on_failure(const Cause& cause) {
    failed_ = true;
    const bool is_first = !first_cause_ && cause.kind != CauseKind::resized;
    first_cause_ = is_first ? std::optional<Cause>(cause) : first_cause_;
    const bool repeats =
        cause.kind == CauseKind::exception && !committed_here_ && cause.text == last_exception_;  // on another worker
    last_exception_ = cause.kind == CauseKind::exception ? cause.text : last_exception_;
    if (repeats || cause.kind == CauseKind::stopped || (cause.kind == CauseKind::disagreement && !has_committed_)) {
      return cause;
    }
    without_commit_ = committed_here_ ? 0 : without_commit_ + 1;
    return without_commit_ >= most_ ? std::optional<Cause>(first_cause_.value_or(cause)) : std::nullopt;
  }

 private:
  int most_;
  int without_commit_ = 0;  ///< attempts in a row
  bool failed_ = false;     ///< whether the last attempt has failed
  bool committed_here_ = false;
  bool has_committed_ = false;
  std::optional<Cause> first_cause_;
  std::string last_exception_;  ///< its text, if nothing was committed since
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
