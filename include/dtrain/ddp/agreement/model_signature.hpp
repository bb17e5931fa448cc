#pragma once
/// @file
/// Model signature: names, shapes, types and options that must be the same on all ranks.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Only the kind of a device is compared: each rank has its own GPU.
struct ParameterSignature {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  DeviceKind device = DeviceKind::host;

  friend bool operator==(const ParameterSignature&, const ParameterSignature&) = default;
};

/// Parameters, buffers and options that must be the same on all ranks.
struct ModelSignature {
  std::uint64_t bucket_bytes = 0;
  std::uint64_t first_bucket_bytes = 0;
  ReduceOp reduce_op = ReduceOp::average;
  std::vector<ParameterSignature> parameters;  ///< followed by the buffers
  bool deterministic = false;
  bool reorder_gradients = false;
  bool allow_unused_parameters = false;
  bool broadcast_buffers = false;
  Accumulate accumulate = Accumulate::element;

  friend bool operator==(const ModelSignature&, const ModelSignature&) = default;
};

/// The signature of a model's parameters and buffers, in the model's order.
inline ModelSignature model_signature(std::span<const Parameter> parameters, const DdpOptions& options,
                                      std::span<const TensorView> buffers = {}) {
  ModelSignature signature{options.bucket_bytes,
                           options.first_bucket_bytes,
                           options.reduce_op,
                           {},
                           options.deterministic,
                           options.reorder_gradients,
                           options.allow_unused_parameters,
                           options.broadcast_buffers,
                           options.accumulate};
  signature.parameters.reserve(parameters.size() + buffers.size());
  for (const Parameter& parameter : parameters) {
    signature.parameters.push_back(
        {parameter.name, parameter.value.shape, parameter.value.dtype, parameter.value.device.kind});
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    signature.parameters.push_back(
        {"(buffer " + std::to_string(i) + ")", buffers[i].shape, buffers[i].dtype, buffers[i].device.kind});
  }
  return signature;
}

}  // namespace DTRAIN_NAMESPACE::ddp
