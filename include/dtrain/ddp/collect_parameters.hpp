#pragma once
/// @file
/// ModelFunctions: a wrapped model's parameters, buffers and callbacks, without its type; parameters that cannot be
/// trained are rejected.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/address_check.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/model.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The longest name of a parameter, since ranks exchange and compare names.
inline constexpr std::size_t max_parameter_name_bytes = 1024;

namespace detail {

std::string kind(const TensorView& view);

void add(std::vector<Parameter>& parameters, const Parameter& parameter);

/// @throws Error (invalid_argument) for a buffer without memory
void add(std::vector<TensorView>& buffers, const TensorView& buffer);

}  // namespace detail

/// Checks parameters. Some have elements: a library may make them only in its first forward pass. Every gradient has
/// memory, which no value shares, unless all gradients lack it (see Parameter) or the model has bind_gradient.
/// @throws Error (invalid_argument)
void check_parameters(const std::vector<Parameter>& parameters, bool binds);

/// The model's present parameters. Names are copied, tensors are not.
template <Model M>
std::vector<Parameter> collect_parameters(M& model) {
  std::vector<Parameter> parameters;
  for (const Parameter& parameter : model.parameters()) {
    detail::add(parameters, parameter);
  }
  check_parameters(parameters, BindsGradients<M>);
  return parameters;
}

/// The model's present buffers; empty for a model without buffers(). @throws Error (invalid_argument)
template <Model M>
std::vector<TensorView> collect_buffers(M& model) {
  std::vector<TensorView> buffers;
  if constexpr (HasBuffers<M>) {
    for (const TensorView& buffer : model.buffers()) {
      detail::add(buffers, buffer);
    }
  }
  return buffers;
}

/// Sizes of the gradients, for plan_buckets.
std::vector<GradientSize> gradient_sizes(std::span<const Parameter> parameters);

/// Functions and tensors of a model, for its wrapper. Lifetime: the model outlives the object.
struct ModelFunctions {
  std::vector<Parameter> parameters;
  std::vector<TensorView> buffers;
  AddressCheck::Read read_parameters;
  std::function<void(std::size_t, const TensorView&)> bind_gradient;  ///< empty: the model has none
  ReadValue read_value;                                               ///< empty: values stay where they are
  std::vector<const void*> identities;  ///< the parameters' identities; empty: their values' addresses
};

/// @throws Error (invalid_argument) for parameters that cannot be trained, or buffers without memory
template <Model M>
ModelFunctions model_functions(M& model) {
  ModelFunctions functions{collect_parameters(model), collect_buffers(model), AddressCheck::reading(model), {}, {}, {}};
  if constexpr (BindsGradients<M>) {
    functions.bind_gradient = [&model](std::size_t i, const TensorView& view) { model.bind_gradient(i, view); };
  }
  if constexpr (MovesValues<M>) {
    functions.read_value = model.value_reader();
    for (std::size_t i = 0; i < functions.parameters.size(); ++i) {
      functions.identities.push_back(model.identity(i));
    }
  }
  return functions;
}

/// The same for a list, which is copied. @throws Error (invalid_argument) for parameters that cannot be trained
inline ModelFunctions model_functions(ParameterList list) {
  check_parameters(list, false);
  return {std::move(list), {}, {}, {}, {}, {}};
}

#if DTRAIN_DEFINITIONS

namespace detail {

DTRAIN_DEFINED std::string kind(const TensorView& view) {
  return format_text("{} {} on {}", {name(view.dtype), to_string(view.shape), to_string(view.device)});
}

DTRAIN_DEFINED void add(std::vector<Parameter>& parameters, const Parameter& parameter) {
  parameters.push_back(parameter);
}

DTRAIN_DEFINED void add(std::vector<TensorView>& buffers, const TensorView& buffer) {
  if (buffer.data == nullptr && buffer.bytes() != 0) {
    throw_error(Errc::invalid_argument,
                "buffer {} of the model has no memory; allocate it before DistributedDataParallel", {buffers.size()});
  }
  buffers.push_back(buffer);
}

}  // namespace detail

/// Checks that no two tensors overlap. A tied parameter listed twice would be reduced twice, or updated twice from the
/// same old value.
/// @param view_of gives the value or the gradient, which `what` names in the error
/// @throws Error (invalid_argument) for two tensors that overlap
inline void check_apart(std::span<const Parameter> parameters, const TensorView& (*view_of)(const Parameter&),
                        const char* what) {
  std::vector<std::size_t> by_address;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (view_of(parameters[i]).data != nullptr && view_of(parameters[i]).bytes() != 0) {
      by_address.push_back(i);
    }
  }
  std::sort(by_address.begin(), by_address.end(), [&](std::size_t a, std::size_t b) {
    return std::less<>{}(view_of(parameters[a]).data, view_of(parameters[b]).data);
  });
  for (std::size_t next = 1; next < by_address.size(); ++next) {
    const std::size_t a = by_address[next - 1];
    const std::size_t b = by_address[next];
    const TensorView& before = view_of(parameters[a]);
    if (std::less<>{}(view_of(parameters[b]).data, before.data + before.bytes())) {
      throw_error(Errc::invalid_argument, "the {} of {} and {} share memory; list a tied parameter once",
                  {what, describe_parameter(std::min(a, b), parameters[std::min(a, b)].name),
                   describe_parameter(std::max(a, b), parameters[std::max(a, b)].name)});
    }
  }
}

/// Checks that no gradient overlaps a value: the average would be written over weights.
/// @throws Error (invalid_argument)
inline void check_gradients_apart_from_values(std::span<const Parameter> parameters) {
  struct TensorRange {
    const std::byte* begin;
    const std::byte* end;
    std::size_t parameter;
    bool is_gradient;
  };
  std::vector<TensorRange> ranges;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const bool is_gradient : {false, true}) {
      const TensorView& view = is_gradient ? parameters[i].gradient : parameters[i].value;
      if (view.data != nullptr && view.bytes() != 0) {
        ranges.push_back({view.data, view.data + view.bytes(), i, is_gradient});
      }
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const TensorRange& a, const TensorRange& b) { return std::less<>{}(a.begin, b.begin); });
  const TensorRange* furthest[2] = {nullptr, nullptr};  // values' and gradients' ranges with the last ends so far
  for (const TensorRange& range : ranges) {
    const TensorRange* const other = furthest[range.is_gradient ? 0 : 1];
    if (other != nullptr && std::less<>{}(range.begin, other->end)) {
      const std::size_t gradient = range.is_gradient ? range.parameter : other->parameter;
      const std::size_t value = range.is_gradient ? other->parameter : range.parameter;
      throw_error(
          Errc::invalid_argument,
          "the gradient of {} and the value of {} share memory, so that a step would write averaged gradients "
          "over weights; give the gradient memory of its own",
          {describe_parameter(gradient, parameters[gradient].name), describe_parameter(value, parameters[value].name)});
    }
    const TensorRange*& own = furthest[range.is_gradient ? 1 : 0];
    if (own == nullptr || std::less<>{}(own->end, range.end)) own = &range;
  }
}

DTRAIN_DEFINED void check_parameters(const std::vector<Parameter>& parameters, bool binds) {
  if (parameters.empty()) {
    throw_error(Errc::invalid_argument, "the model's parameters() is empty: there is nothing to train");
  }
  if (std::all_of(parameters.begin(), parameters.end(), [](const Parameter& parameter) {
        return parameter.value.bytes() == 0 && parameter.gradient.bytes() == 0;
      })) {
    throw_error(Errc::invalid_argument,
                "all {} parameters of the model have 0 elements: there is nothing to train; a library that makes them "
                "in its first pass has not made them yet: run one forward pass before wrapping the model",
                {parameters.size()});
  }
  const bool some_have_memory = std::any_of(parameters.begin(), parameters.end(), [](const Parameter& parameter) {
    return parameter.gradient.data != nullptr && parameter.gradient.bytes() != 0;
  });
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TensorView& value = parameters[i].value;
    const TensorView& gradient = parameters[i].gradient;
    const std::string described = describe_parameter(i, parameters[i].name);
    if (parameters[i].name.size() > max_parameter_name_bytes) {
      throw_error(Errc::invalid_argument, "the name of {}... has {} bytes; the most is {}",
                  {describe_parameter(i, parameters[i].name.substr(0, 128)), parameters[i].name.size(),
                   max_parameter_name_bytes});
    }
    if (value.shape != gradient.shape || value.dtype != gradient.dtype || value.device != gradient.device) {
      throw_error(Errc::invalid_argument, "the value of {} is {}, its gradient is {}; they must be alike",
                  {described, detail::kind(value), detail::kind(gradient)});
    }
    if (value.data == nullptr && value.bytes() != 0) {
      throw_error(Errc::invalid_argument, "the value of {} has no memory; allocate it before DistributedDataParallel",
                  {described});
    }
    if (gradient.data == nullptr && gradient.bytes() != 0 && !binds && some_have_memory) {
      throw_error(Errc::invalid_argument,
                  "the gradient of {} has no memory; allocate it, or give the model bind_gradient(i, view)",
                  {described});
    }
  }
  check_apart(
      parameters, [](const Parameter& parameter) -> const TensorView& { return parameter.gradient; }, "gradients");
  if (!binds) check_gradients_apart_from_values(parameters);
}

DTRAIN_DEFINED std::vector<GradientSize> gradient_sizes(std::span<const Parameter> parameters) {
  std::vector<GradientSize> sizes;
  sizes.reserve(parameters.size());
  for (const Parameter& parameter : parameters) {
    sizes.push_back({parameter.gradient.bytes(), parameter.gradient.dtype, parameter.gradient.device});
  }
  return sizes;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
