#pragma once
/// @file
/// StepCommits of an ElasticWorker: commit() and resume_at(), by which the program's function changes the training
/// state.

#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/elastic/kept_state.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/rendezvous/formation/progress.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {
template <class>
class FormationClient;
}  // namespace DTRAIN_NAMESPACE::rendezvous

namespace DTRAIN_NAMESPACE::elastic {

/// Threads: the program's one.
class StepCommits {
 public:
  bool is_elastic() const noexcept { return is_elastic_; }
  std::uint64_t step() const noexcept { return progress_.step(); }
  std::uint64_t attempt() const noexcept { return context_ == nullptr ? 0 : assignment_.attempt; }

  /// @name Calls of the user's function. @throws Error (invalid_argument) where it does not run
  /// @{
  /// A step is in the state as a whole.
  DTRAIN_ON_USE void commit() {
    commit([] {});
  }
  /// Throws what `write` threw: the state is torn, and this worker does not go on.
  template <class F>
  void commit(F&& write) {
    begin_commit();
    try {
      write();
    } catch (...) {
      abandon_commit();
      throw;
    }
    end_commit();
  }
  /// @throws Error (invalid_argument) for fewer steps than are done, unless a ShardedOptimizer's state was loaded; for
  /// more, unless load_checkpoint() has loaded a file in this attempt, or a model was wrapped
  DTRAIN_ON_USE void resume_at(std::uint64_t step);
  /// @}

 protected:
  explicit StepCommits(bool is_elastic) : is_elastic_(is_elastic) {}
  ~StepCommits() = default;

  const bool is_elastic_;  ///< otherwise steps are counted only
  KeptState state_;
  rendezvous::WorkerProgress progress_;
  rendezvous::Assignment assignment_{};
  std::uint64_t committed_attempt_ = 0;                      ///< the last one whose commit the store has got
  bool is_torn_ = false;                                     ///< the function of commit() runs, or has thrown
  group::RankContext* context_ = nullptr;                    ///< context of the present attempt
  rendezvous::FormationClient<void>* reports_to_ = nullptr;  ///< the first commit of each attempt

 private:
  DTRAIN_ON_USE void require_function(const char* caller) const;
  DTRAIN_ON_USE void require_equal_weights(const group::WrappedModel& model) const;
  DTRAIN_ON_USE void begin_commit();
  DTRAIN_ON_USE void abandon_commit() noexcept;
  DTRAIN_ON_USE void end_commit();

  bool is_writing_ = false;  ///< the function of commit() runs
};

}  // namespace DTRAIN_NAMESPACE::elastic

#if DTRAIN_DEFINITIONS

#include <memory>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/elastic/wrapped_weights.hpp"
#include "dtrain/rendezvous/formation/formation_client.hpp"

namespace DTRAIN_NAMESPACE::elastic {

DTRAIN_ON_USE void StepCommits::require_function(const char* caller) const {
  if (is_elastic() && context_ == nullptr) {
    throw_error(Errc::invalid_argument, "{} was called outside of the function that train() calls", {caller});
  }
  if (is_writing_) {
    throw_error(Errc::invalid_argument, "{} was called inside commit(); call it before or after that", {caller});
  }
  if (is_torn_) {
    throw_error(Errc::invalid_argument, "{} was called after the function of commit() had thrown: the state is torn",
                {caller});
  }
}

/// For a model whose hook lets the ranks' weights differ between two commits.
DTRAIN_ON_USE void StepCommits::require_equal_weights(const group::WrappedModel& model) const {
  if (model.weights_differ()) {
    throw_error(Errc::invalid_argument,
                "commit() was called after a step that has left each rank its own weights, as those of hooks::LocalSgd "
                "do; call it after average() has returned true, or after average_now()");
  }
  if (committed_attempt_ == assignment_.attempt) return;
  const MemoryRanges copied = state_.copied_memory();
  for (const TensorView& weights : model.list_weights()) {
    if (weights.bytes() != 0 && !copied.contains(weights)) {
      throw_error(Errc::invalid_argument,
                  "commit() was called for a model whose weights are not given to keep_copy(), although its hook makes "
                  "steps without a commit, as hooks::LocalSgd does: they are put back when a rank is lost; give "
                  "keep_copy() the parameters and the optimizer's state");
    }
  }
}

DTRAIN_ON_USE void StepCommits::begin_commit() {
  require_function("commit()");
  if (context_ != nullptr) {
    for (const std::weak_ptr<const group::WrappedModel>& each : context_->wrapped) {
      const auto model = each.lock();
      if (!model) continue;
      model->wait_for_commit();
      if (model->weights_differ) require_equal_weights(*model);
      if (*model->is_step_open) {
        throw_error(Errc::invalid_argument,
                    "commit() was called in a step that has not ended, such as between begin() and finish() or in the "
                    "function of backward(), so the gradients are not reduced yet; call it after the step");
      }
      if (model->no_sync_depth > 0 || model->has_unreduced) {
        throw_error(Errc::invalid_argument,
                    "commit() was called under no_sync(), or before a step had reduced the gradients that steps under "
                    "no_sync() left; the ranks would get different weights: call it after a backward() outside of "
                    "no_sync(), or after discard_accumulated()");
      }
    }
    context_->tasks.handle().refuse_calls(
        "a call of dtrain was made in commit(), where the state is half written and a loss of another rank would leave "
        "it so; make the call before or after it");
  }
  is_torn_ = is_writing_ = true;
}

DTRAIN_ON_USE void StepCommits::abandon_commit() noexcept {
  is_writing_ = false;
  if (context_ != nullptr) {
    context_->is_torn = true;
    context_->tasks.handle().refuse_calls(
        "a call of dtrain was made after the function of commit() had thrown, which leaves the state half written; let "
        "the exception through, so that another worker takes this one's place");
  }
}

DTRAIN_ON_USE void StepCommits::end_commit() {
  if (context_ != nullptr) context_->tasks.handle().allow_calls();
  is_torn_ = is_writing_ = false;
  progress_.committed();
  state_.commit();
  if (reports_to_ != nullptr && std::exchange(committed_attempt_, assignment_.attempt) != assignment_.attempt) {
    context_->kept_are_equal = false;  // a later wrapper of this attempt may wrap what a rank has written
    const bool has_receivers = assignment_.receivers > 0;
    reports_to_->committed(
        {assignment_.attempt, has_receivers ? summary_of_weights(*context_) : rendezvous::WeightsSummary{}});
  }
}

DTRAIN_ON_USE void StepCommits::resume_at(std::uint64_t step) {
  require_function("resume_at()");
  const std::uint64_t present = progress_.step();
  const bool has_loaded = context_ != nullptr && context_->sharded.has_loaded;
  if (step < present && !has_loaded) {
    throw_error(Errc::invalid_argument,
                "resume_at({}) after {} steps; a checkpoint of fewer steps is loaded only where load_checkpoint() has "
                "loaded a ShardedOptimizer's state before",
                {step, present});
  }
  if (step > present && context_ != nullptr && !context_->has_loaded && context_->wrapped.empty()) {
    throw_error(Errc::invalid_argument,
                "resume_at({}) after {} steps, before load_checkpoint() has loaded a file or a model is wrapped: a "
                "rank that lacks the state would go on as if it had it, once those that have it are lost; load the "
                "state on all ranks, wrap the model, then call resume_at()",
                {step, present});
  }
  if (step < present && assignment_.rank == 0) {
    log(LogLevel::warning, format_text("the job goes on at step {}, that of the checkpoint: steps that are trained "
                                       "again: {}",
                                       {step, present - step}));
  }
  if (has_loaded) context_->sharded.has_resumed = true;
  progress_.resumed(step);
  state_.commit();
}

}  // namespace DTRAIN_NAMESPACE::elastic

#endif  // DTRAIN_DEFINITIONS
