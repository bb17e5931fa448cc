#pragma once
/// @file
/// MasterWeights: a program's f32 copies of parameters and gradients, for optimizers of 16-bit models.

#include <cstddef>
#include <optional>
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
///   ddp.backward(...);
///   master.load_gradients(ddp);                     // or scaler.step(ddp, master)
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

  /// Writes `factor` times the reduced gradients of `ddp` to gradients(), in one pass, and takes the norm if it was
  /// measured. Each product is rounded once to f32. @pre `ddp` wraps the same model
  template <class Ddp>
  void load_gradients(const Ddp& ddp, double factor = 1) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      load_gradient(i, ddp.gradient(i), factor);
    }
    norm_.reset();
    if (ddp.has_gradient_norm()) {
      norm_ = ddp.gradient_norm().times(factor);
    }
  }

  /// Norm of gradients(). @throws Error (invalid_argument) if the step of the last load_gradients did not measure the
  /// norm
  const GradientNorm& gradient_norm() const {
    if (!norm_) {
      BucketNorms::refuse_unmeasured();
    }
    return *norm_;
  }

  /// Multiplies gradients() and gradient_norm() by `factor`: see clip_gradients. @throws as gradient_norm
  void scale_gradients(double factor);

 private:
  explicit MasterWeights(const std::vector<Parameter>& parameters);

  void load_gradient(std::size_t parameter, const TensorView& gradient, double factor) noexcept;

  std::vector<TensorView> model_values_;
  std::vector<float> values_;
  std::vector<float> gradients_;
  std::vector<Parameter> parameters_;
  std::optional<GradientNorm> norm_;
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

DTRAIN_DEFINED void MasterWeights::scale_gradients(double factor) {
  norm_ = gradient_norm().times(factor);
  multiply_elements(buffer_view(std::span(gradients_)), factor);
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
