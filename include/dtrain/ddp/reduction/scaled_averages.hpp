#pragma once
/// @file
/// Averages that are sums of gradients scaled by 1 / ranks.

#include <algorithm>
#include <span>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/stream/cuda/scaling/scale_kernel.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Whether gradients are multiplied by 1 / ranks while they are packed, so that the collective is a sum: if the backend
/// sums better than it averages, and the driver loads the kernel for every element type. It must be the same on all
/// ranks: the model signature has it.
template <class Communicator>
bool scales_averages([[maybe_unused]] std::span<const Parameter> parameters, [[maybe_unused]] ReduceOp op,
                     [[maybe_unused]] int ranks) {
#if DTRAIN_WITH_CUDA
  if constexpr (backend::PrefersSums<Communicator>) {
    return op == ReduceOp::average && ranks > 1 &&
           std::all_of(parameters.begin(), parameters.end(), [](const Parameter& parameter) {
             const DType dtype = parameter.value.dtype;
             return static_cast<bool>(stream::cuda::ScaleKernel::find(dtype, dtype));
           });
  }
#endif
  return false;
}

}  // namespace DTRAIN_NAMESPACE::ddp
