#pragma once
/// @file
/// Parameter: name, value and gradient of one trainable tensor, at fixed addresses while wrapped. PresentValue: a
/// value's memory now, if values move.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/tensor_view.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The value of a parameter in its present memory.
/// @ingroup training
struct PresentValue {
  TensorView view;
  std::uint64_t moves = 0;  ///< changes with each move, even if the other memory has the same address
  StreamHandle stream{};    ///< whose present work writes a value in device memory; of the host: none does
};

/// Gives the present value of parameter i. May outlive the model. Threads: the threads of the model's steps. @throws
/// Error for a value that has become another kind of tensor
/// @ingroup training
using ReadValue = std::function<PresentValue(std::size_t parameter)>;

/// One trainable tensor of a model: `{"weights", tensor_view(weights), tensor_view(gradients)}`. Value and gradient
/// have the same shape, dtype and device, and are contiguous. Lifetime: both keep their addresses until the model's
/// DistributedDataParallel is destroyed.
/// All gradients of a model may lack memory: `tensor_view<float>(nullptr, shape)`. Such a model calls ready(i, view),
/// and every step has a ShardedOptimizer, which keeps its share of the gradients.
/// @ingroup training
struct Parameter {
  std::string name;
  TensorView value;
  TensorView gradient;
};

/// A list of parameters in place of a model: `DistributedDataParallel ddp{list, group}`. The wrapper copies the list;
/// the tensors keep their addresses until the wrapper is destroyed.
/// @ingroup training
using ParameterList = std::vector<Parameter>;

/// "parameter 3 'fc1.weight'".
inline std::string describe_parameter(std::size_t index, const std::string& name) {
  return format_text("parameter {} '{}'", {index, name});
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::Parameter;
using ddp::ParameterList;
using ddp::ReadValue;
}  // namespace DTRAIN_NAMESPACE
