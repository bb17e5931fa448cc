#pragma once
/// @file
/// Memory of LibTorch's tensors: as a TensorView, and as bytes or means that all ranks share.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace DTRAIN_NAMESPACE::libtorch {

/// Policy of each forward pass for buffers, such as the running statistics of BatchNorm.
/// @ingroup libtorch
enum class BufferPolicy {
  rank0,  ///< every rank gets rank 0's
  mean,   ///< floating-point buffers become the mean over the ranks; others, rank 0's
  none,   ///< each rank keeps its own
};

/// View of a tensor's memory, for collectives and checkpoints. Elements have their order in memory, which may differ
/// from the order of the indices (channels_last). A complex tensor is viewed as pairs of numbers; a tensor of more than
/// eight dimensions, as flat. @throws Error (unsupported) that begins with `name`
inline TensorView view_of(const torch::Tensor& given, const std::string& name = "a tensor") {
  if (given.layout() != torch::kStrided || !given.is_non_overlapping_and_dense() ||
      !(given.is_cpu() || given.is_cuda())) {
    throw Error(Errc::unsupported,
                name + " is not dense memory of the host or a CUDA device; give its contiguous() there");
  }
  const torch::Tensor tensor = given.is_complex() ? torch::view_as_real(given.detach()) : given;
  const auto dtype = [&] {
    switch (tensor.scalar_type()) {
      case torch::kFloat64: return DType::f64;
      case torch::kFloat32: return DType::f32;
      case torch::kFloat16: return DType::f16;
      case torch::kBFloat16: return DType::bf16;
      case torch::kInt64: return DType::i64;
      case torch::kInt32: return DType::i32;
      case torch::kUInt8:
      case torch::kBool: return DType::u8;
      default: break;
    }
    throw Error(Errc::unsupported,
                name + " has elements of type " + c10::toString(tensor.scalar_type()) +
                    "; dtrain takes Double, Float, Half, BFloat16, Long, Int, Byte and complex ones");
  }();
  Device device;
  if (tensor.is_cuda()) device = {DeviceKind::cuda, static_cast<std::int32_t>(tensor.get_device())};
  const std::int64_t flat = tensor.numel();
  const bool fits = static_cast<std::size_t>(tensor.dim()) <= Shape::max_rank;
  const Shape shape(fits ? std::span<const std::int64_t>(tensor.sizes().data(), tensor.sizes().size())
                         : std::span<const std::int64_t>(&flat, 1));
  return {static_cast<std::byte*>(tensor.data_ptr()), shape, dtype, device};
}

/// A tensor of a module, with its name there.
struct ModuleTensor {
  std::string name;
  torch::Tensor tensor;
};

namespace detail {

/// The tensor's distinct elements: an expanded dimension counts once. Writes to the result are no change to autograd.
/// detach() would share the tensor's version, and the backward pass of an earlier forward pass would refuse the tensor.
inline torch::Tensor distinct_elements(const torch::Tensor& tensor) {
  torch::Tensor distinct = tensor.data();
  for (std::int64_t i = 0; i < distinct.dim(); ++i) {
    if (distinct.stride(i) == 0 && distinct.size(i) > 1) {
      distinct = distinct.narrow(i, 0, 1);
    }
  }
  return distinct;
}

/// The elements of a contiguous tensor of any type, as bytes.
inline torch::Tensor bytes_of(const torch::Tensor& contiguous) {
  return torch::from_blob(contiguous.data_ptr(), {static_cast<std::int64_t>(contiguous.nbytes())},
                          contiguous.options().dtype(torch::kUInt8));
}

inline void finish_device_work(const torch::Tensor& tensor) {
  if (tensor.is_cuda()) {
    torch::cuda::synchronize(tensor.get_device());
  }
}

/// Gives every rank rank 0's elements, whatever their types. Collective, blocking.
template <class Group>
void broadcast_tensors(const Group& group, const std::vector<torch::Tensor>& tensors) {
  if (tensors.empty() || group.world_size() == 1) {
    return;
  }
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> copies;
  std::vector<torch::Tensor> bytes;
  for (const torch::Tensor& tensor : tensors) {
    copies.push_back(tensor.clone(torch::MemoryFormat::Contiguous));
    bytes.push_back(bytes_of(copies.back()));
  }
  const torch::Tensor all = torch::cat(bytes);
  if (all.numel() == 0) {
    return;
  }
  finish_device_work(all);
  group.broadcast(view_of(all).flat(), 0);
  finish_device_work(all);
  if (group.rank() == 0) {
    return;
  }
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bytes[i].copy_(all.narrow(0, begin, bytes[i].numel()));
    torch::Tensor target = tensors[i];
    target.copy_(copies[i]);
    begin += bytes[i].numel();
  }
}

/// Gives every rank the mean of all ranks' elements, of real floating-point types. Collective, blocking.
template <class Group>
void average_tensors(const Group& group, const std::vector<torch::Tensor>& tensors) {
  if (tensors.empty() || group.world_size() == 1) {
    return;
  }
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& tensor : tensors) {
    parts.push_back(tensor.reshape({-1}).to(torch::kFloat64));
  }
  const torch::Tensor all = torch::cat(parts);
  if (all.numel() == 0) {
    return;
  }
  finish_device_work(all);
  group.all_reduce(view_of(all).flat(), ReduceOp::average);
  finish_device_work(all);
  std::int64_t begin = 0;
  for (const torch::Tensor& tensor : tensors) {
    torch::Tensor target = tensor;
    target.copy_(all.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

}  // namespace detail

/// Makes the buffers equal on all ranks, as `policy` says. Collective, blocking.
template <class Group>
void synchronize_buffers(const Group& group, const std::vector<ModuleTensor>& buffers, BufferPolicy policy) {
  if (policy == BufferPolicy::none) {
    return;
  }
  std::vector<torch::Tensor> averaged;
  std::vector<torch::Tensor> copied;
  for (const ModuleTensor& buffer : buffers) {
    const bool is_averaged = policy == BufferPolicy::mean && buffer.tensor.is_floating_point();
    (is_averaged ? averaged : copied).push_back(detail::distinct_elements(buffer.tensor));
  }
  detail::broadcast_tensors(group, copied);
  detail::average_tensors(group, averaged);
}

/// Compares the tensors of all ranks. Collective, blocking. @throws Error (disagreement) on every rank if names, types
/// or shapes differ between the ranks
template <class Group>
void require_same_tensors(const Group& group, const std::vector<ModuleTensor>& tensors) {
  std::string description;
  for (const ModuleTensor& named : tensors) {
    description += named.name + c10::toString(named.tensor.scalar_type());
    for (const std::int64_t extent : named.tensor.sizes()) {
      description += ' ' + std::to_string(extent);
    }
    description += '\n';
  }
  const auto hash = static_cast<std::int64_t>(std::hash<std::string>{}(description));
  const std::int64_t least = group.all_reduce(hash, ReduceOp::min);
  if (least != group.all_reduce(hash, ReduceOp::max)) {
    throw Error(Errc::disagreement, "the ranks' modules differ in their frozen parameters or buffers; rank " +
                                        std::to_string(group.rank()) + " has " + std::to_string(tensors.size()) +
                                        " of them: build the same module on every rank");
  }
}

}  // namespace DTRAIN_NAMESPACE::libtorch
