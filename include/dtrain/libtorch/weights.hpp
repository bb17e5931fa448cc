#pragma once
/// @file
/// Weights: tensors of LibTorch modules in files. save_safetensors(), load_safetensors(): for other programs, and from
/// them.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <dtrain/dtrain.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dtrain/libtorch/buffers.hpp"
#include "dtrain/libtorch/modules.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

namespace detail {

/// A tensor of the program, and contiguous memory for its elements: the tensor's own, or a copy. An element that an
/// expanded tensor has several times is also in the copy several times.
struct SavedTensor {
  std::string name;
  std::vector<std::string> other_names;
  torch::Tensor target;
  torch::Tensor contiguous;
};

/// The type in files of elements that dtrain has no DType of; empty for others.
inline std::string_view file_type(torch::ScalarType type) {
  switch (type) {
    case torch::kBool: return "BOOL";
    case torch::kChar: return "I8";
    case torch::kShort: return "I16";
    case torch::kComplexFloat: return "C64";
    default: return "";
  }
}

/// View of a saved tensor. Elements of a type without a DType are bytes in a last dimension.
inline NamedTensor named_tensor(const SavedTensor& saved) {
  const std::string_view type = file_type(saved.contiguous.scalar_type());
  if (type.empty()) return {saved.name, view_of(saved.contiguous, saved.name), nullptr, saved.other_names};
  std::vector<std::int64_t> extents = saved.contiguous.sizes().vec();
  if (extents.size() >= Shape::max_rank) extents = {saved.contiguous.numel()};
  extents.push_back(static_cast<std::int64_t>(saved.contiguous.element_size()));
  return {saved.name, view_of(bytes_of(saved.contiguous).view(extents), saved.name), nullptr, saved.other_names, type};
}

/// The group's stream does not wait for LibTorch's. Blocking.
inline void finish_device_work(const torch::Tensor& tensor) {
  if (tensor.is_cuda()) torch::cuda::synchronize(tensor.get_device());
}

/// Parameters and buffers, by the names in the module's state_dict(). One that has several names is there once, by the
/// first of them.
inline std::vector<SavedTensor> saved_tensors(const Modules& modules) {
  std::vector<SavedTensor> saved;
  std::unordered_map<const void*, std::size_t> index_of;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto [found, is_new] = index_of.emplace(tensor.unsafeGetTensorImpl(), saved.size());
    if (is_new) {
      const torch::Tensor target = tensor.detach();
      saved.push_back({name, {}, target, target.resolve_conj().resolve_neg().contiguous()});
    } else {
      saved[found->second].other_names.push_back(name);
    }
  };
  for (std::size_t m = 0; m < modules.size(); ++m) {
    for (const auto& item : modules[m]->named_parameters())
      add(prefix(modules, m) + item.key(), item.value());
    for (const auto& item : modules[m]->named_buffers())
      add(prefix(modules, m) + item.key(), item.value());
  }
  return saved;
}

/// Views of the tensors for a file. Blocking: the work on a device.
inline std::vector<NamedTensor> views_of(const std::vector<SavedTensor>& tensors) {
  std::vector<NamedTensor> views;
  for (const SavedTensor& saved : tensors) {
    views.push_back(named_tensor(saved));
    finish_device_work(saved.contiguous);
  }
  return views;
}

/// After a file was read: copies the elements to the tensors that are not contiguous.
inline void store_copies(const std::vector<SavedTensor>& tensors) {
  for (const SavedTensor& saved : tensors) {
    if (saved.contiguous.data_ptr() == saved.target.data_ptr()) continue;
    at_distinct_elements(saved.target, saved.target).copy_(at_distinct_elements(saved.contiguous, saved.target));
  }
}

}  // namespace detail

/// Writes the modules' parameters and buffers alone, for other programs: in Python,
/// `net.load_state_dict(safetensors.torch.load_file(path))`, or safetensors.torch.load_model(net, path) for a module
/// with shared tensors. Names, shapes and elements are those of save_checkpoint.
/// The file has rank 0's values. Collective, blocking, atomic, and @throws as save_checkpoint of tensors.
/// @param net as DistributedDataParallel's, before or after wrapping
/// @ingroup libtorch
template <class Group, detail::HasModules Net>
void save_safetensors(const Group& group, const std::string& path, const Net& net) {
  const torch::NoGradGuard no_grad;
  std::vector<detail::SavedTensor> saved;
  std::vector<NamedTensor> tensors;
  static_cast<void>(group::handle_of(group)->on_rank_0("rank 0", "collecting the weights for " + path, [&] {
    saved = detail::saved_tensors(detail::modules_of(net));
    tensors = detail::views_of(saved);
    return true;
  }));
  ddp::save_safetensors(group, path, tensors);
}

/// Every rank's parameters and buffers get the values of rank 0's file at `path`, which may be Python's save_file() of
/// a state_dict(), an index of several files, or, with `.extra = true`, a checkpoint. The file has a shared
/// tensor by any of its names. Construct a ShardedOptimizer after it. Collective, blocking: as load_safetensors of
/// tensors.
/// @param net as DistributedDataParallel's, before or after wrapping @param options as load_safetensors of tensors
/// @throws as load_safetensors of tensors, before a value changes
/// @ingroup libtorch
template <class Group, detail::HasModules Net>
void load_safetensors(const Group& group, const std::string& path, const Net& net,
                      const SafetensorsOptions& options = {}) {
  const torch::NoGradGuard no_grad;
  const std::vector<detail::SavedTensor> saved = detail::saved_tensors(detail::modules_of(net));
  ddp::load_safetensors(group, path, detail::views_of(saved), options);
  detail::store_copies(saved);
}

}  // namespace DTRAIN_NAMESPACE::libtorch

namespace DTRAIN_NAMESPACE {
using libtorch::load_safetensors;
using libtorch::save_safetensors;
}  // namespace DTRAIN_NAMESPACE
