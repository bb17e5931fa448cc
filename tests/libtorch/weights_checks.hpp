#pragma once
/// @file
/// Checks of checkpoint_probe: names of a module's tensors in files, and the weights alone.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>
#include <dtrain/libtorch.hpp>

#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
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

/// Two names of one parameter and of one buffer.
struct Shared : nn::Module {
  torch::Tensor head = register_parameter("head", torch::full({2}, 3.0));
  torch::Tensor again = register_parameter("again", head);
  torch::Tensor scale = register_buffer("scale", torch::full({2}, 3.0));
  torch::Tensor scale_again = register_buffer("scale_again", scale);
};

/// The same names, without sharing.
struct Apart : nn::Module {
  torch::Tensor head = register_parameter("head", torch::full({2}, 5.0));
  torch::Tensor again = register_parameter("again", torch::full({2}, 6.0));
  torch::Tensor scale_again = register_buffer("scale_again", torch::full({2}, 7.0));
};

inline void check_shared(const Group& group, const std::string& file) {
  const auto shared = std::make_shared<Shared>();
  torch::optim::Adam optimizer(shared->parameters());
  const auto values_are = [&](double head, double scale) {
    return shared->head.eq(head).all().item<bool>() && shared->scale.eq(scale).all().item<bool>();
  };
  dtrain::save_checkpoint(group, file, shared, optimizer);
  const std::optional<Names> names = names_in(group, file);
  require(!names || (names->count("head") == 1 && names->count("again") == 0 && names->count("scale_again") == 0),
          "a tensor that has two names is written once");
  torch::NoGradGuard no_grad;
  shared->head.fill_(0);
  require(dtrain::load_checkpoint(group, file, shared, optimizer) && values_are(3, 3), "and loaded");
  const auto apart = std::make_shared<Apart>();
  dtrain::save_safetensors(group, file, apart);
  dtrain::load_safetensors(group, file, shared);
  require(values_are(5, 7), "a file has a shared tensor by any of its names, and the first one counts");
  dtrain::save_safetensors(group, file, shared);  // for tests/libtorch/restored.py
}

/// A tensor of each type that dtrain has no DType of, a complex one whose conjugate is not computed, and one of nine
/// dimensions.
struct Types : nn::Module {
  Types() {
    add("flag", torch::tensor({true, false}));
    add("small", torch::tensor({-3, 4}, torch::kInt8));
    add("short", torch::tensor({-300, 400}, torch::kInt16).view({2, 1}).expand({2, 3}));
    add("complex", torch::complex(torch::tensor({1.F, 2.F}), torch::tensor({3.F, 4.F})).conj());
    add("wide", torch::complex(torch::ones({1}, torch::kDouble), torch::ones({1}, torch::kDouble)));
    add("deep", torch::ones({1, 1, 1, 1, 1, 1, 1, 1, 2}, torch::kInt16));
    add("single", torch::tensor(5, torch::kInt16));
  }
  void add(const std::string& name, const torch::Tensor& values) { register_buffer(name, values); }
};

inline void check_types(const Group& group, const std::string& file) {
  const auto types = std::make_shared<Types>();
  std::vector<torch::Tensor> before;
  for (const torch::Tensor& each : types->buffers())
    before.push_back(each.clone());
  dtrain::save_safetensors(group, file, types);
  for (torch::Tensor& each : types->buffers())
    dtrain::libtorch::detail::at_distinct_elements(each, each).zero_();
  dtrain::load_safetensors(group, file, types);
  for (std::size_t i = 0; i < before.size(); ++i)
    require(torch::equal(types->buffers()[i], before[i]), "a buffer of any type has its values again");
  dtrain::save_checkpoint_async(group, file + ".async", types).wait();
  require(dtrain::load_checkpoint(group, file + ".async", types),
          "a file written in the background has the same types");
  if (group.rank() != 0) return;
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  for (const char* tensor : {R"("flag":{"dtype":"BOOL","shape":[2],)", R"("small":{"dtype":"I8","shape":[2],)",
                             R"("short":{"dtype":"I16","shape":[2, 3],)", R"("complex":{"dtype":"C64","shape":[2],)",
                             R"("wide":{"dtype":"F64","shape":[1, 2],)", R"("deep":{"dtype":"I16","shape":[2],)",
                             R"("single":{"dtype":"I16","shape":[],)"})
    require(text.str().find(tensor) != std::string::npos, "the file has " + std::string(tensor));
}

}  // namespace libtorch_probe
