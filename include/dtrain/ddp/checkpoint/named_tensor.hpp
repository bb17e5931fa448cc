#pragma once
/// @file
/// NamedTensor: a tensor of a checkpoint, with its name.

#include <span>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// One tensor of the training state: a parameter, an optimizer's velocity, the number of steps done.
/// Lifetime: the memory outlives the call that gets it.
/// @ingroup checkpoints
struct NamedTensor {
  std::string name;
  TensorView value;
};

/// The values of a model's parameters, with their names. Gradients are not included: every step computes them anew.
/// @ingroup checkpoints
std::vector<NamedTensor> parameter_values(std::span<const Parameter> parameters);

/// Names, shapes and types of the tensors, for comparison between ranks and with files.
/// @param on_devices whether device memory is allowed
/// @throws Error (unsupported) if device memory is not allowed; (invalid_argument) for too long a name or no memory
std::vector<ParameterSignature> tensor_signatures(std::span<const NamedTensor> tensors, bool on_devices = false);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::vector<NamedTensor> parameter_values(std::span<const Parameter> parameters) {
  std::vector<NamedTensor> values;
  values.reserve(parameters.size());
  for (const Parameter& parameter : parameters) {
    values.push_back({parameter.name, parameter.value});
  }
  return values;
}

DTRAIN_DEFINED std::vector<ParameterSignature> tensor_signatures(std::span<const NamedTensor> tensors,
                                                                 bool on_devices) {
  std::vector<ParameterSignature> signatures;
  signatures.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name.size() > max_parameter_name_bytes) {
      throw_error(Errc::invalid_argument, "the name of tensor {} of a checkpoint has {} bytes; at most {} are possible",
                  {signatures.size(), tensor.name.size(), max_parameter_name_bytes});
    }
    if (!on_devices && tensor.value.device.kind != DeviceKind::host) {
      throw_error(Errc::unsupported, "tensor {} of a checkpoint is on {}; copy it to host memory and give that",
                  {signatures.size(), to_string(tensor.value.device)});
    }
    if (tensor.value.data == nullptr && tensor.value.bytes() != 0) {
      throw_error(Errc::invalid_argument, "tensor {} of a checkpoint has no memory; allocate it before",
                  {signatures.size()});
    }
    signatures.push_back({tensor.name, tensor.value.shape, tensor.value.dtype, DeviceKind::host});
  }
  return signatures;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::NamedTensor;
using ddp::parameter_values;
}  // namespace DTRAIN_NAMESPACE
