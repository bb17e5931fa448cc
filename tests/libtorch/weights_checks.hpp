#pragma once
/// @file
/// Checks of checkpoint_probe: names of a module's tensors in files, and the weights alone.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>
#include <dtrain/libtorch.hpp>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "expectations.hpp"

namespace libtorch_probe {

using Names = std::set<std::string>;

/// Of a file that rank 0 has written, on rank 0. Others: none.
inline std::optional<Names> names_in(const Group& group, const std::string& file) {
  if (group.rank() != 0) return std::nullopt;
  const std::vector<std::string> names = dtrain::safetensors_names(file);
  return Names(names.begin(), names.end());
}

inline void require_names(const Group& group, const std::string& file, const Names& wanted, const std::string& what) {
  const std::optional<Names> names = names_in(group, file);
  if (!names || *names == wanted) return;
  std::string all;
  for (const std::string& name : *names)
    all += "'" + name + "' ";
  require(false, what + ", but the file has " + all);
}

/// A submodule whose tensors have names of dtrain's.
struct WithChild : nn::Module {
  explicit WithChild(const std::string& name) { register_module(name, nn::Linear(2, 2)); }
};

inline nn::Sequential normed_layers() {
  return nn::Sequential(nn::Linear(3, 2), nn::BatchNorm1d(2));
}

inline void check_names(const Group& group, const std::string& file) {
  const nn::Sequential net = normed_layers();
  torch::optim::LBFGS optimizer(net->parameters());
  torch::optim::SGD second(net->parameters(), 0.1);
  torch::optim::StepLR schedule(second, 2, 0.5);
  dtrain::libtorch::SamplerPosition position{dtrain::DistributedSampler{group, {.dataset_size = 8, .global_batch = 4}}};
  float number = 0;
  const std::vector<dtrain::NamedTensor> list{{"rng", dtrain::tensor_view(&number, {})}};
  dtrain::save_checkpoint(group, file, net, optimizer, schedule, position, list);
  const Names of_module{
      "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"};
  Names all = of_module;
  all.insert(
      {"dtrain.optimizer.torch::optim::LBFGS", "dtrain.scheduler", "dtrain.sampler", "dtrain.rng", "dtrain.list.rng"});
  require_names(group, file, all,
                "tensors of modules have the names of state_dict(), and all others begin with dtrain.");
  dtrain::save_safetensors(group, file, net);
  require_names(group, file, of_module, "save_safetensors() writes the tensors of state_dict() alone");
  const dtrain::libtorch::Modules modules{nn::Linear(1, 1).ptr(), nn::Linear(1, 1).ptr()};
  dtrain::save_checkpoint(group, file, modules);
  require_names(group, file, {"0.weight", "0.bias", "1.weight", "1.bias", "dtrain.rng"},
                "the names of several modules begin with the index");
  require_error("a checkpoint was given a module with the tensor 'dtrain.weight'",
                [&] { dtrain::save_checkpoint(group, file + ".refused", std::make_shared<WithChild>("dtrain")); });
  dtrain::save_checkpoint(group, file, std::make_shared<WithChild>("dtrain2"));
}

/// Whether each tensor has the value on every rank.
inline bool all_are(const Group& group, const nn::Sequential& net, double value) {
  bool are = true;
  for (const auto& list : {net->parameters(), net->buffers()}) {
    for (const torch::Tensor& each : list) {
      are = torch::equal(each, torch::full_like(each, value)) && is_same_everywhere(group, each) && are;
    }
  }
  return are;
}

inline void fill(const nn::Sequential& net, double value) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& each : net->parameters())
    each.fill_(value);
  for (torch::Tensor& each : net->buffers())
    each.fill_(value);
}

inline void check_weights(const Group& group, const std::string& file) {
  nn::Sequential net = normed_layers();
  net[0]->as<nn::Linear>()->weight.set_data(torch::zeros({3, 2}).t());  // not contiguous
  fill(net, 3 + group.rank());
  dtrain::save_safetensors(group, file, net);
  fill(net, 7);
  dtrain::load_safetensors(group, file, net.ptr());
  require(all_are(group, net, 3), "every rank has the weights of rank 0's file");
  require(net[0]->as<nn::Linear>()->weight.stride(0) == 1, "tensors keep their layout");
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.1));
  dtrain::save_checkpoint(group, file, net, optimizer);
  fill(net, 7);
  require_error("its tensor 'dtrain.", [&] { dtrain::load_safetensors(group, file, net); });
  require(all_are(group, net, 7), "a refused file changes nothing");
  dtrain::load_safetensors(group, file, net, {.extra = true});
  require(all_are(group, net, 3), "a checkpoint has weights too");
  nn::Sequential half = normed_layers();
  half->to(torch::kHalf);
  half[1]->as<nn::BatchNorm1d>()->named_buffers()["num_batches_tracked"].set_data(torch::zeros({}, torch::kLong));
  dtrain::load_safetensors(group, file, half, {.extra = true});
  require(all_are(group, half, 3), "elements are converted to the module's type");
  const nn::Sequential deeper(nn::Linear(3, 2), nn::BatchNorm1d(2), nn::Linear(2, 2));
  require_error("it has no tensor '2.weight'", [&] { dtrain::load_safetensors(group, file, deeper, {.extra = true}); });
}

}  // namespace libtorch_probe
