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

/// Saves a training, as save_checkpoint of a LibTorch optimizer, with the optimizer's state in shard files. The file
/// has the optimizer's options. Each rank writes one shard file; the files are named and committed as by
/// save_checkpoint of a dtrain::ShardedOptimizer. A further tensor of the file follows `rng`: `updates`, i64
/// [parameters], the number of updates of each parameter that needs gradients.
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

/// Loads a training, as load_checkpoint of a LibTorch optimizer; any number of ranks may have saved it. Call it after
/// the construction of `optimizer`. @throws as load_checkpoint of a LibTorch optimizer and of a
/// dtrain::ShardedOptimizer
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
