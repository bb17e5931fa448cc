#pragma once
/// @file
/// Checkpoints of a training with libtorch::ShardedOptimizer: each rank writes its share of the state.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/libtorch/checkpoint.hpp"
#include "dtrain/libtorch/modules.hpp"
#include "dtrain/libtorch/sharded_optimizer.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

/// As save_checkpoint of an optimizer of LibTorch's, whose options are in the file; its state is in files beside it,
/// one for each rank, which are named and committed as save_checkpoint of a dtrain::ShardedOptimizer says. The file has
/// one tensor more, after those: `updates`, i64 [parameters]: how often each one that needs gradients was updated.
/// @ingroup libtorch
template <class Group, class Net, class O, class C, class Stage>
void save_checkpoint(const Group& group, const std::string& path, const Net& net,
                     ShardedOptimizer<O, C, Stage>& optimizer, const SamplerPosition& position,
                     const torch::Generator& rng = at::detail::getDefaultCPUGenerator()) {
  const torch::NoGradGuard no_grad;
  detail::TrainingTensors tensors =
      detail::collect_training(group, detail::modules_of(net), optimizer.options(), position, rng);
  std::vector<std::int64_t> updates = optimizer.updates();
  tensors.list.push_back({"updates", tensor_view(updates)});
  ddp::save_checkpoint(group, path, tensors.list, optimizer.sharded());
}

/// As load_checkpoint of an optimizer of LibTorch's; any number of ranks may have saved. Call it after the construction
/// of `optimizer`. @throws as that, and as load_checkpoint of a dtrain::ShardedOptimizer
/// @ingroup libtorch
template <class Group, class Net, class O, class C, class Stage>
bool load_checkpoint(const Group& group, const std::string& path, const Net& net,
                     ShardedOptimizer<O, C, Stage>& optimizer, SamplerPosition& position,
                     const torch::Generator& rng = at::detail::getDefaultCPUGenerator()) {
  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> updates = optimizer.updates();
  const auto load = [&](std::vector<NamedTensor> tensors) {
    tensors.push_back({"updates", tensor_view(updates)});
    return ddp::load_checkpoint(group, path, tensors, optimizer.sharded());
  };
  if (!detail::load_training(group, path, detail::modules_of(net), optimizer.options(), position, rng, load)) {
    return false;
  }
  optimizer.set_updates(updates);
  return true;
}

}  // namespace DTRAIN_NAMESPACE::libtorch

namespace DTRAIN_NAMESPACE {
using libtorch::load_checkpoint;
using libtorch::save_checkpoint;
}  // namespace DTRAIN_NAMESPACE
