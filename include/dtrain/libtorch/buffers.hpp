#pragma once
/// @file
/// BufferPolicy: whether LibTorch modules' buffers become rank 0's bytes or the ranks' means in a forward pass.
/// broadcast_tensors(): rank 0's tensors.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/libtorch/modules.hpp"
#include "dtrain/libtorch/stream_order.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

/// Policy of each forward pass for buffers (the running statistics of BatchNorm).
/// @ingroup libtorch
enum class BufferPolicy {
  rank0,  ///< every rank gets rank 0's
  mean,   ///< floating-point buffers become the mean over the ranks; others, rank 0's
  none,   ///< each rank keeps its own
};

namespace detail {

/// The part of `tensor` at the distinct elements of `of`, which has the same sizes: an expanded dimension counts once.
inline torch::Tensor at_distinct_elements(torch::Tensor tensor, const torch::Tensor& of) {
  for (std::int64_t i = 0; i < of.dim(); ++i) {
    if (of.stride(i) == 0 && of.size(i) > 1) tensor = tensor.narrow(i, 0, 1);
  }
  return tensor;
}

/// The tensor's distinct elements. Writes to the result are no change to autograd. detach() would share the tensor's
/// version, and the backward pass of an earlier forward pass would reject the tensor.
inline torch::Tensor distinct_elements(const torch::Tensor& tensor) {
  return at_distinct_elements(tensor.data(), tensor);
}

/// The elements of a contiguous tensor of any type, as bytes.
inline torch::Tensor bytes_of(const torch::Tensor& contiguous) {
  return torch::from_blob(contiguous.data_ptr(), {static_cast<std::int64_t>(contiguous.nbytes())},
                          contiguous.options().dtype(torch::kUInt8));
}

/// Gives every rank rank 0's elements, whatever their types. Collective; blocking as in_stream_order.
template <class P>
void broadcast_tensors(const ProcessGroup<P>& group, const std::vector<torch::Tensor>& tensors) {
  if (tensors.empty() || group.world_size() == 1) {
    return;
  }
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> copies;
  std::vector<torch::Tensor> bytes;
  for (const torch::Tensor& tensor : tensors) {
    copies.push_back(tensor.contiguous());  // the tensor itself, as a rule
    bytes.push_back(bytes_of(copies.back()));
  }
  const torch::Tensor all = torch::cat(bytes);
  if (all.numel() == 0) {
    return;
  }
  broadcast_in_order(group, all);
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

/// Gives every rank the mean of all ranks' elements, of real floating-point types. Collective; blocking as
/// in_stream_order.
template <class P>
void average_tensors(const ProcessGroup<P>& group, const std::vector<torch::Tensor>& tensors) {
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
  all_reduce_in_order(group, all, ReduceOp::average);
  std::int64_t begin = 0;
  for (const torch::Tensor& tensor : tensors) {
    torch::Tensor target = tensor;
    target.copy_(all.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

}  // namespace detail

/// Makes the buffers equal on all ranks, as `policy` says. Collective. Blocking, except on a GPU: there it is enqueued,
/// in the order of the current stream.
template <class P>
void synchronize_buffers(const ProcessGroup<P>& group, const std::vector<ModuleTensor>& buffers, BufferPolicy policy) {
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

/// Compares in which order the elements of trained parameters lie, because steps exchange them in the order of the
/// memory. Collective, blocking. @param parameters with the same sizes on every rank @throws Error (disagreement) on
/// every rank that names the first parameter whose order differs between the ranks
template <class Group>
void require_same_order(const Group& group, const std::vector<ModuleTensor>& parameters) {
  const std::size_t count = parameters.size();
  std::vector<std::int64_t> least(2 * count);  // hashes, and their complements, whose least is that of the largest hash
  for (std::size_t i = 0; i < count; ++i) {
    least[i] = static_cast<std::int64_t>(std::hash<std::string>{}(order_of(parameters[i].tensor)));
    least[count + i] = ~least[i];
  }
  group.all_reduce(least, ReduceOp::min);
  for (std::size_t i = 0; i < count; ++i) {
    if (least[i] == ~least[count + i]) continue;
    const std::string order = order_of(parameters[i].tensor);
    throw Error(Errc::disagreement, "the elements of parameter '" + parameters[i].name +
                                        "' lie in different orders on the ranks (on rank " +
                                        std::to_string(group.rank()) + " " +
                                        (order.empty() ? "it is contiguous" : "its strides are " + order) +
                                        "); give it the same memory format on every rank");
  }
}

}  // namespace DTRAIN_NAMESPACE::libtorch
