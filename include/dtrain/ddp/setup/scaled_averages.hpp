#pragma once
/// @file
/// scales_averages(): whether gradients are multiplied by 1 / ranks while packed, so that the collective is a sum.

#include <algorithm>
#include <cstddef>
#include <span>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/stream/cuda/kernels/scaled_copy_batch.hpp"

namespace DTRAIN_NAMESPACE::ddp {

#if DTRAIN_WITH_CUDA

/// Loads the kernel for every element type of the parameters. @returns whether the driver has loaded all of them
inline bool loads_scaling_kernels(std::span<const Parameter> parameters, stream::cuda::StreamRef stream) {
  bool loads = true;
  for (std::size_t i = 0; loads && i < parameters.size(); ++i) {
    const DType dtype = parameters[i].value.dtype;
    const bool is_loaded = std::any_of(parameters.begin(), parameters.begin() + static_cast<std::ptrdiff_t>(i),
                                       [dtype](const Parameter& before) { return before.value.dtype == dtype; });
    loads = is_loaded || stream::cuda::ScaledCopyBatch::load(dtype, dtype, stream);
  }
  return loads;
}

#endif  // DTRAIN_WITH_CUDA

/// Whether gradients are multiplied by 1 / ranks while they are packed, so that the collective is a sum: if the backend
/// sums better than it averages, and the driver loads the kernel for every element type. It must be the same on all
/// ranks: the model signature has it. The kernels are loaded now, because loading may wait for work that waits for
/// other ranks.
template <class Communicator>
bool scales_averages([[maybe_unused]] std::span<const Parameter> parameters, [[maybe_unused]] ReduceOp op,
                     [[maybe_unused]] int ranks, [[maybe_unused]] typename Communicator::Stream stream) {
  if constexpr (backend::PrefersSums<Communicator>) {
    return op == ReduceOp::average && ranks > 1 && loads_scaling_kernels(parameters, stream);
  } else {
    return false;
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp
