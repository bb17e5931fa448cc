#pragma once
/// @file
/// What a training needs to go on where it was: the state that its checkpoints hold.

#include <dtrain/dtrain.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"

namespace fashion_mnist {

/// The step counts all steps of all epochs. What decides which training it is stands beside it, so that a checkpoint of
/// another one is not taken for it. Threads: none but the one that uses it.
template <class Model>
class TrainingState {
 public:
  using Optimizer = typename Model::Optimizer;

  /// Lifetime: `model` and `sgd` stay where they are.
  TrainingState(const Options& options, Model& model, Optimizer& sgd)
      : file_(options.checkpoint), which_(identity(options)), model_(&model), sgd_(&sgd) {}

  std::int64_t step() const noexcept { return step_; }
  void advance() noexcept { ++step_; }

  /// Begins anew where no checkpoint is wanted or there is none. Collective, blocking.
  /// @throws dtrain::Error (usage) on every rank for the checkpoint of a training with other options
  template <class Group>
  void load(const Group& group) {
    if (file_.empty() || !dtrain::load_checkpoint(group, file_, tensors())) return;
    model_->take_saved();
    sgd_->take_velocities();
    if (which_ != sought_) {
      throw dtrain::Error(dtrain::Errc::usage,
                          file_ + " is the checkpoint of a training with --epochs=" + std::to_string(which_[0]) +
                              " --global-batch=" + std::to_string(which_[1]) +
                              " --seed=" + std::to_string(static_cast<std::uint64_t>(which_[2])) +
                              (which_[3] == 0 ? "" : " --micro-batches=" + std::to_string(which_[3])) +
                              "; go on with these, or name another file");
    }
  }

  /// Collective, blocking.
  template <class Group>
  void save(const Group& group) {
    if (!file_.empty()) dtrain::save_checkpoint(group, file_, tensors());
  }

  /// All of it.
  std::vector<dtrain::NamedTensor> tensors() {
    std::vector<dtrain::NamedTensor> all = model_->saved();
    for (const dtrain::NamedTensor& velocity : sgd_->velocities(model_->parameters())) {
      all.push_back(velocity);
    }
    all.push_back({"epochs, global batch, seed, micro-batches", dtrain::tensor_view(which_.data(), {4})});
    all.push_back({"steps", dtrain::tensor_view(&step_, {})});
    return all;
  }

 private:
  using Identity = std::array<std::int64_t, 4>;

  static Identity identity(const Options& options) {
    return {options.epochs, static_cast<std::int64_t>(options.global_batch), static_cast<std::int64_t>(options.seed),
            static_cast<std::int64_t>(options.micro_batches)};
  }

  std::string file_;
  Identity which_;
  Identity sought_ = which_;
  std::int64_t step_ = 0;
  Model* model_;
  Optimizer* sgd_;
};

}  // namespace fashion_mnist
