#pragma once
/// @file
/// FailureHistory of a FormationState: an elastic job's failures and commits, pauses between attempts, and what ends
/// the job. Pure.

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/formation/formation_options.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Threads: one. A template, as DTRAIN_ON_USE explains.
template <class = void>
class FailureHistory {
 public:
  explicit FailureHistory(const FormationOptions& options)
      : most_(options.attempts_without_commit), least_pause_(options.least_pause), longest_(options.longest_pause) {}

  bool has_committed() const noexcept { return has_committed_; }
  /// Whether a step of the present attempt, or of the last one, is known to be committed.
  bool committed_here() const noexcept { return committed_here_; }
  /// Attempts in a row that have failed before a commit.
  int without_commit() const noexcept { return without_commit_; }

  /// The first cause since the last commit, and the last one after it, if it is another; nullopt without a failure.
  std::optional<Cause> cause() const {
    std::optional<Cause> found = first_;
    if (found && last_ && last_->text != found->text) {
      append_text(found->text, "; the last of {} attempts without a commit: {}", {without_commit_, last_->sentence()});
    }
    return found;
  }

  void on_attempt() noexcept {
    ++attempts_;
    committed_here_ = false;
  }

  /// @param failed the attempt in which the step was committed has failed since
  void on_commit(bool failed) {
    has_committed_ = committed_here_ = true;
    without_commit_ = 0;
    if (!failed) {
      first_.reset();
      last_.reset();
      own_error_.clear();
    }
  }

  /// An attempt has failed. @returns the cause with which the job ends; nullopt: the next attempt may form
  std::optional<Cause> on_failure(const Cause& of) {
    if (of.kind != CauseKind::resized) {
      last_ = of;
      first_ = first_ ? first_ : last_;
    }
    if (of.kind == CauseKind::stopped || (of.kind == CauseKind::disagreement && !has_committed_)) return of;
    without_commit_ = committed_here_ ? 0 : without_commit_ + 1;
    return without_commit_ >= most_ ? std::optional<Cause>(cause().value_or(of)) : std::nullopt;
  }

  /// Gives the last cause the text of the rank that it names, which knows more.
  void explain(int rank, const std::string& text) {
    if (!last_ || last_->rank != rank) return;
    if (first_->text == last_->text) first_->text = text;
    last_->text = text;
  }

  /// A worker ends by its error. @returns the cause with which the job ends: another worker ended by the same error in
  /// an earlier attempt, and no step was committed since
  std::optional<Cause> on_own_error(const Cause& of) {
    const bool repeats = !committed_here_ && of.text == own_error_ && own_error_attempt_ != attempts_;
    own_error_ = of.text;
    own_error_attempt_ = attempts_;
    return repeats ? std::optional<Cause>(of) : std::nullopt;
  }

  /// All ranks threw an error alike, and nobody ended by it.
  void on_shared_error(const std::string& text) {
    shared_errors_ = shared_errors(text) + 1;
    shared_error_ = text;
  }
  /// How often in a row that was this error.
  int shared_errors(const std::string& text) const { return text == shared_error_ ? shared_errors_ : 0; }

  /// From the failure of the last attempt to the next attempt: none after a single attempt without a commit.
  std::chrono::milliseconds pause() const noexcept {
    return without_commit_ <= 1 ? std::chrono::milliseconds(0)
                                : std::min(least_pause_ * (1 << std::min(without_commit_ - 2, 16)), longest_);
  }

 private:
  int most_;
  std::chrono::milliseconds least_pause_;
  std::chrono::milliseconds longest_;
  int without_commit_ = 0;
  bool committed_here_ = false;
  bool has_committed_ = false;
  std::optional<Cause> first_;  ///< the first failure since the last commit
  std::optional<Cause> last_;
  std::string own_error_;  ///< the last one, if nothing was committed since
  int attempts_ = 0;
  int own_error_attempt_ = 0;  ///< the attempt that the own error ended
  std::string shared_error_;   ///< the last error of all ranks, whatever was committed since
  int shared_errors_ = 0;      ///< errors in a row that all ranks threw
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
