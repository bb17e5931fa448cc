#pragma once
/// @file
/// Modules: the LibTorch modules that are trained together, and their tensors by name.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/libtorch/tensor_memory.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

/// Several modules that are trained as one model.
/// @ingroup libtorch
using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

namespace detail {

template <class M>
Modules modules_of(const torch::nn::ModuleHolder<M>& holder) {
  return {holder.ptr()};
}
template <class M>
Modules modules_of(const std::shared_ptr<M>& module) {
  return {module};
}
inline Modules modules_of(const Modules& modules) {
  return modules;
}

/// Prefix of names in module `index`; empty for a single module.
inline std::string prefix(const Modules& modules, std::size_t index) {
  return modules.size() == 1 ? "" : std::to_string(index) + ".";
}

/// Every parameter once; tied parameters have their first name.
inline std::vector<ModuleTensor> parameters_of(const Modules& modules) {
  std::vector<ModuleTensor> found;
  for (std::size_t m = 0; m < modules.size(); ++m) {
    for (const auto& item : modules[m]->named_parameters()) {
      const auto is_it = [&](const ModuleTensor& other) { return other.tensor.is_same(item.value()); };
      if (std::none_of(found.begin(), found.end(), is_it)) {
        found.push_back({prefix(modules, m) + item.key(), item.value()});
      }
    }
  }
  return found;
}

inline std::vector<ModuleTensor> buffers_of(const Modules& modules) {
  std::vector<ModuleTensor> found;
  for (std::size_t m = 0; m < modules.size(); ++m) {
    for (const auto& item : modules[m]->named_buffers()) {
      if (item.value().defined()) found.push_back({prefix(modules, m) + item.key(), item.value()});
    }
  }
  return found;
}

[[noreturn]] inline void refuse_changed(const Modules& modules, const torch::Tensor& parameter) {
  std::string name = "?";
  for (const ModuleTensor& named : parameters_of(modules)) {
    if (named.tensor.is_same(parameter)) {
      name = named.name;
    }
  }
  throw Error(Errc::invalid_argument, "parameter '" + name +
                                          "' was added or replaced after its module was wrapped; make another "
                                          "DistributedDataParallel");
}

/// @param wrapped parameters_of(modules) when they were wrapped
/// @throws Error (invalid_argument) that names a parameter that was added or replaced since
inline void require_same_parameters(const Modules& modules, const std::vector<ModuleTensor>& wrapped) {
  std::size_t distinct = 0;
  for (const auto& module : modules) {
    for (const torch::Tensor& present : module->parameters()) {
      if (distinct < wrapped.size() && present.is_same(wrapped[distinct].tensor)) {
        ++distinct;
        continue;
      }
      const auto is_it = [&](const ModuleTensor& named) { return named.tensor.is_same(present); };
      if (std::none_of(wrapped.begin(), wrapped.end(), is_it)) {
        refuse_changed(modules, present);
      }
    }
  }
}

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE::libtorch
