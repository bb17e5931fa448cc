#pragma once
/// @file
/// Model signature: names, shapes, types and options that must be the same on all ranks.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The longest signature that a rank reads.
inline constexpr std::size_t max_signature_bytes = std::size_t{64} << 20;

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
  bool scales_averages = false;  ///< see scaled_averages.hpp
  std::string hook{};            ///< its description; empty: none
  bool measures_plan = false;    ///< DdpOptions::plan

  friend bool operator==(const ModelSignature&, const ModelSignature&) = default;
};

/// A number of extents as u8, and each as i64.
void fields(Serializer& of, Shape& shape);

/// Those that checkpoint files have as well.
void tensor_fields(Serializer& of, ParameterSignature& tensor);

/// Equal signatures give the same bytes; different signatures give different bytes.
void fields(Serializer& of, ModelSignature& signature);

/// The signature of a model's parameters and buffers, in the model's order.
ModelSignature model_signature(std::span<const Parameter> parameters, const DdpOptions& options,
                               std::span<const TensorView> buffers = {}, bool scales_averages = false,
                               const std::string& hook = {});

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void fields(Serializer& of, Shape& shape) {
  std::array<std::int64_t, Shape::max_rank> extents{};
  std::copy(shape.extents().begin(), shape.extents().end(), extents.begin());
  auto rank = static_cast<std::uint8_t>(shape.extents().size());
  of.number(rank, 0, Shape::max_rank);
  for (std::size_t i = 0; i < rank; ++i) {
    of.number(extents[i]);
  }
  try {
    shape = Shape(std::span(extents).first(rank));
  } catch (const Error&) {
    of.fail("has an impossible shape");
  }
}

DTRAIN_DEFINED void tensor_fields(Serializer& of, ParameterSignature& tensor) {
  of.raw_text(tensor.name, max_parameter_name_bytes);
  of.choice(tensor.dtype, first_dtype, last_dtype);
  fields(of, tensor.shape);
}

DTRAIN_DEFINED void fields(Serializer& of, ModelSignature& signature) {
  of.constant("dtrain ddp 7\n");
  of.number(signature.bucket_bytes);
  of.number(signature.first_bucket_bytes);
  of.choice(signature.reduce_op, ReduceOp::sum, ReduceOp::product);
  of.flag(signature.deterministic);
  of.flag(signature.reorder_gradients);
  of.flag(signature.allow_unused_parameters);
  of.flag(signature.broadcast_buffers);
  of.choice(signature.accumulate, Accumulate::element, Accumulate::f32);
  of.flag(signature.scales_averages);
  of.text(signature.hook, max_parameter_name_bytes);
  of.flag(signature.measures_plan);
  of.list(signature.parameters, 0, max_signature_bytes, [&of](ParameterSignature& parameter) {
    tensor_fields(of, parameter);
    of.choice(parameter.device, DeviceKind::host, DeviceKind::cuda);
  });
}

DTRAIN_DEFINED ModelSignature model_signature(std::span<const Parameter> parameters, const DdpOptions& options,
                                              std::span<const TensorView> buffers, bool scales_averages,
                                              const std::string& hook) {
  ModelSignature signature{options.bucket_bytes,
                           options.first_bucket_bytes,
                           options.reduce_op,
                           {},
                           options.deterministic,
                           options.reorder_gradients,
                           options.allow_unused_parameters,
                           options.broadcast_buffers,
                           options.accumulate,
                           scales_averages,
                           hook.substr(0, max_parameter_name_bytes),
                           options.plan.is_measured()};
  signature.parameters.reserve(parameters.size() + buffers.size());
  for (const Parameter& parameter : parameters) {
    signature.parameters.push_back(
        {parameter.name, parameter.value.shape, parameter.value.dtype, parameter.value.device.kind});
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    signature.parameters.push_back(
        {format_text("(buffer {})", {i}), buffers[i].shape, buffers[i].dtype, buffers[i].device.kind});
  }
  return signature;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
