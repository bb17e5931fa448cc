#pragma once
/// @file
/// Registration of bound gradients: a model's gradients are bound by one wrapper at a time.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/group/gradient_binding_registry.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// @param identities an address for each parameter, null for one that may be in several wrappers, being empty; or
/// nothing: the addresses of the values are taken
/// @returns an object that prevents other wrappers from binding these gradients while it lives
/// @throws Error (invalid_argument) if one is bound already
std::unique_ptr<group::GradientBinding> register_gradient_bindings(
    std::shared_ptr<group::GradientBindingRegistry> registry, std::span<const Parameter> parameters,
    std::span<const void* const> identities);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::unique_ptr<group::GradientBinding> register_gradient_bindings(
    std::shared_ptr<group::GradientBindingRegistry> registry, std::span<const Parameter> parameters,
    std::span<const void* const> identities) {
  auto binding = std::make_unique<group::GradientBinding>(std::move(registry));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TensorView& value = parameters[i].value;
    const void* const identity = !identities.empty() ? identities[i] : value.bytes() != 0 ? value.data : nullptr;
    if (identity != nullptr && !binding->add(identity)) {  // add() accepts a tied parameter twice
      throw_error(Errc::invalid_argument,
                  "the gradient of {} lives in another DistributedDataParallel: a model with bind_gradient is wrapped "
                  "once at a time; destroy the other one first",
                  {describe_parameter(i, parameters[i].name)});
    }
  }
  return binding;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
