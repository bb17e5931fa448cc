#pragma once
/// @file
/// MasterWeights: a program's f32 copies of parameters and gradients, for optimizers of 16-bit models.

#include <cstddef>
#include <span>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/model.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Two f32 arrays, of the values and of the gradients of all parameters. Elements have the order of parameters(), so
/// that the optimizer's state keeps its order when buckets are rebuilt.
///
///   dtrain::MasterWeights master{model};            // after the wrapper has broadcast rank 0's values
///   ddp.backward(pass, {.master = &master});        // and perhaps a scaler, and clipping
///   optimizer.step(master.values(), master.gradients());
///   master.store();
///
/// A checkpoint saves the f32 values, parameter_values(master.parameters()); after loading, store() writes these values
/// to the model. Threads: one at a time. Lifetime: borrows the memory of the model's values. Movable.
/// @ingroup precision
class MasterWeights {
 public:
  /// Allocates both arrays, and calls load(). @throws Error (invalid_argument) as DistributedDataParallel;
  /// (unsupported) for a parameter that is not f32, f16 or bf16 in host memory
  template <Model M>
  explicit MasterWeights(M& model) : MasterWeights(collect_parameters(model)) {}

  MasterWeights(MasterWeights&&) noexcept = default;
  MasterWeights& operator=(MasterWeights&&) noexcept = default;

  std::span<float> values() noexcept { return {values_.data(), values_.size()}; }
  std::span<float> gradients() noexcept { return {gradients_.data(), gradients_.size()}; }

  /// Views of both arrays, parameter by parameter, with the model's names and shapes.
  const std::vector<Parameter>& parameters() const noexcept { return parameters_; }

  /// Copies the model's values to values(), exactly.
  void load() noexcept;

  /// Rounds values() to the model's values, to nearest even.
  void store() const noexcept;

  /// For a step with StepOptions::master: writes `factor` times the reduced gradient of a parameter to gradients(), in
  /// one pass. Each product is rounded once to f32.
  void load_gradient(std::size_t parameter, const TensorView& gradient, double factor) noexcept;

  /// @throws Error (invalid_argument) unless these gradients, of a wrapper's step, have the elements of gradients()
  void require_of(std::span<const Parameter> parameters, const char* caller) const;

 private:
  explicit MasterWeights(const std::vector<Parameter>& parameters);

  std::vector<TensorView> model_values_;
  std::vector<float> values_;
  std::vector<float> gradients_;
  std::vector<Parameter> parameters_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::MasterWeights;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <algorithm>

#include "dtrain/kernels/conversion.hpp"
#include "dtrain/kernels/float_environment.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED MasterWeights::MasterWeights(const std::vector<Parameter>& parameters) {
  std::size_t elements = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TensorView& value = parameters[i].value;
    const bool is_known = value.dtype == DType::f32 || value.dtype == DType::f16 || value.dtype == DType::bf16;
    if (!is_known || value.device.kind != DeviceKind::host) {
      throw_error(Errc::unsupported, "MasterWeights got {}, of {} on {}; it takes f32, f16 and bf16 in host memory",
                  {describe_parameter(i, parameters[i].name), name(value.dtype), to_string(value.device)});
    }
    elements += value.shape.element_count();
  }
  values_.resize(elements);
  gradients_.resize(elements);
  std::size_t at = 0;
  for (const Parameter& parameter : parameters) {
    const Shape& shape = parameter.value.shape;
    model_values_.push_back(parameter.value);
    parameters_.push_back(
        {parameter.name, tensor_view(values_.data() + at, shape), tensor_view(gradients_.data() + at, shape)});
    at += shape.element_count();
  }
  load();
}

DTRAIN_DEFINED void MasterWeights::load() noexcept {
  const kernels::DefaultFloatEnvironment environment;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const BufferView from = model_values_[i].flat();
    kernels::convert(from.dtype, from.data, DType::f32, parameters_[i].value.data, from.count);
  }
}

DTRAIN_DEFINED void MasterWeights::store() const noexcept {
  const kernels::DefaultFloatEnvironment environment;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const BufferView to = model_values_[i].flat();
    kernels::convert(DType::f32, parameters_[i].value.data, to.dtype, to.data, to.count);
  }
}

DTRAIN_DEFINED void MasterWeights::load_gradient(std::size_t parameter, const TensorView& gradient,
                                                 double factor) noexcept {
  constexpr std::size_t block = 4096;  // stays in the first-level cache between the two kernels
  const kernels::DefaultFloatEnvironment environment;
  const BufferView from = gradient.flat();
  std::byte* const to = parameters_[parameter].gradient.data;
  for (std::size_t i = 0; i < from.count; i += block) {
    const std::size_t count = std::min(block, from.count - i);
    kernels::convert(from.dtype, from.data + i * size_bytes(from.dtype), DType::f32, to + i * sizeof(float), count);
    if (factor != 1) {
      multiply_elements({to + i * sizeof(float), count, DType::f32, {}}, factor);
    }
  }
}

DTRAIN_DEFINED void MasterWeights::require_of(std::span<const Parameter> parameters, const char* caller) const {
  const auto has_equal_size = [](const Parameter& own, const Parameter& other) {
    return own.value.shape.element_count() == other.value.shape.element_count();
  };
  if (std::equal(parameters_.begin(), parameters_.end(), parameters.begin(), parameters.end(), has_equal_size)) return;
  throw_error(
      Errc::invalid_argument,
      "{} has MasterWeights of another model: {} parameters of {} elements, but the wrapper's {} parameters have "
      "other sizes; make them from the model that is wrapped",
      {caller, parameters_.size(), values_.size(), parameters.size()});
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
