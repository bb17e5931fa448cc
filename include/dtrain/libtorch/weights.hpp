#pragma once
/// @file
/// Weights: tensors of LibTorch modules in files. save_safetensors(), load_safetensors(): for other programs, and from
/// them.

#include <torch/torch.h>

#include <dtrain/dtrain.hpp>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/libtorch/buffers.hpp"
#include "dtrain/libtorch/modules.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

namespace detail {

/// A tensor of the program, and contiguous memory for its elements: the tensor's own, or a copy. An element that an
/// expanded tensor has several times is also in the copy several times.
struct SavedTensor {
  std::string name;
  torch::Tensor target;
  torch::Tensor contiguous;
};

/// View of a saved tensor. Elements of a type without a DType are bytes, with the type in the name.
inline NamedTensor named_tensor(const SavedTensor& saved) {
  switch (saved.contiguous.scalar_type()) {
    case torch::kChar:
    case torch::kShort:
      return {saved.name + " (" + c10::toString(saved.contiguous.scalar_type()) + ")",
              view_of(bytes_of(saved.contiguous), saved.name)};
    default: return {saved.name, view_of(saved.contiguous, saved.name)};
  }
}

/// The group's stream does not wait for LibTorch's. Blocking.
inline void finish_device_work(const torch::Tensor& tensor) {
  if (tensor.is_cuda()) torch::cuda::synchronize(tensor.get_device());
}

/// Parameters and buffers, by the names in the module's state_dict().
inline std::vector<SavedTensor> saved_tensors(const Modules& modules) {
  std::vector<ModuleTensor> all = parameters_of(modules);
  for (ModuleTensor& buffer : buffers_of(modules)) {
    all.push_back(std::move(buffer));
  }
  std::vector<SavedTensor> saved;
  for (const ModuleTensor& named : all) {
    const torch::Tensor target = named.tensor.detach();
    saved.push_back({named.name, target, target.contiguous()});
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
/// `net.load_state_dict(safetensors.torch.load_file(path))`. Names, shapes and elements are those of save_checkpoint.
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
/// a state_dict(), an index of several files, or, with `.extra = true`, a checkpoint. Construct a ShardedOptimizer
/// after it. Collective, blocking: as load_safetensors of tensors.
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
