#pragma once
/// @file
/// ModelFunctions: tensors and callbacks of a model, of the same type for every model. The wrapper makes it by
/// model_functions() and gives it to Driver.

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/address_check.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/model.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Functions and tensors of a model, for its wrapper. Lifetime: the model outlives the object.
struct ModelFunctions {
  std::vector<Parameter> parameters;
  std::vector<TensorView> buffers;
  AddressCheck::Read read_parameters;
  std::function<void(std::size_t, const TensorView&)> bind_gradient;  ///< empty: the model has none
  ReadValue read_value;                                               ///< empty: values stay where they are
  std::vector<const void*> identities;  ///< of the parameters; empty: their values' addresses
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

}  // namespace DTRAIN_NAMESPACE::ddp
