#pragma once
/// @file
/// What a training needs to go on where it was: the state that its checkpoints hold.

#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../shared/chosen_hook.hpp"
#include "options.hpp"

namespace gpt2 {

/// The steps and their losses, beside the optimizer's and the hook's state. The losses' name in the file has the flags
/// that decide which training it is, so that a checkpoint of another one is not taken for it. Threads: none but the one
/// that uses it.
class TrainingState {
 public:
  explicit TrainingState(const Options& options)
      : file_(options.checkpoint),
        save_after_(options.checkpoint_steps),
        measures_plan_(options.measures_plan),
        flags_("--steps=" + std::to_string(options.steps) + " --global-batch=" + std::to_string(options.global_batch) +
               " --seed=" + std::to_string(options.seed) + " --rate=" + std::to_string(options.rate) +
               " --clip=" + std::to_string(options.clip) + " --hook=" + options.hook.text + " --data=" +
               options.data.substr(0, 512) + (options.load.empty() ? "" : " --load=" + options.load.substr(0, 256)) +
               (options.micro_batches == 0 ? "" : " --micro-batches=" + std::to_string(options.micro_batches))),
        losses_(static_cast<std::size_t>(options.steps)) {}

  std::int64_t step() const noexcept { return step_; }
  bool is_last() const noexcept { return step_ == std::ssize(losses_); }
  /// Whether the ranks need the same weights now.
  bool is_saved() const noexcept { return is_last() || (!file_.empty() && step_ % save_after_ == 0); }

  /// What a worker of an elastic job receives that comes later, beside the optimizer's state.
  std::vector<dtrain::NamedTensor> kept() {
    return {{"steps", dtrain::tensor_view(&step_, {})}, {"losses with " + flags_, dtrain::tensor_view(losses_)}};
  }

  /// All losses are those of all ranks.
  void have_averages() noexcept { averaged_ = step_; }

  /// After a step. @param loss this rank's
  void advance(double loss) { losses_[static_cast<std::size_t>(step_++)] = loss; }

  /// The losses of all ranks, averaged. Collective, blocking.
  template <class Group>
  const std::vector<double>& losses(const Group& group) {
    const auto done = static_cast<std::size_t>(std::exchange(averaged_, step_));
    const auto fresh = std::span(losses_).subspan(done, static_cast<std::size_t>(step_) - done);
    if (!fresh.empty()) group.all_reduce(fresh, dtrain::ReduceOp::average);
    return losses_;
  }

  /// Begins anew where no checkpoint is wanted or there is none. Before the first step. Collective, blocking.
  /// @throws dtrain::Error (usage) on every rank for the checkpoint of a training with other options
  template <class Ddp, class Optimizer>
  void load(Ddp& ddp, Optimizer& optimizer, shared::ChosenHook& hook) {
    try {
      if (file_.empty() || !optimizer.load(file_, tensors(ddp, hook))) return;
    } catch (const dtrain::Error& error) {
      if (error.code() != dtrain::make_error_code(dtrain::Errc::protocol)) throw;
      throw dtrain::Error(dtrain::Errc::usage,
                          std::string(error.what()) + "; go on with the flags it began with, or name another file");
    }
    averaged_ = step_;
    hook.set_steps(step_);
  }

  /// Where a checkpoint is wanted. Collective, blocking.
  template <class Ddp, class Optimizer>
  void save(Ddp& ddp, Optimizer& optimizer, shared::ChosenHook& hook) {
    if (file_.empty()) return;
    losses(ddp.group());
    if (hook.averages_weights()) optimizer.average_state();
    optimizer.save(file_, tensors(ddp, hook));
  }

 private:
  template <class Ddp>
  std::vector<dtrain::NamedTensor> tensors(Ddp& ddp, shared::ChosenHook& hook) {
    std::vector<dtrain::NamedTensor> all = hook.state(ddp.group());
    if (measures_plan_) all.push_back(dtrain::plan_state(ddp));
    for (dtrain::NamedTensor& each : kept()) {
      all.push_back(std::move(each));
    }
    return all;
  }

  std::string file_;
  std::int64_t save_after_;
  bool measures_plan_;
  std::string flags_;
  std::int64_t step_ = 0;
  std::int64_t averaged_ = 0;
  std::vector<double> losses_;  // below averaged_ those of all ranks, from there on this rank's
};

}  // namespace gpt2
