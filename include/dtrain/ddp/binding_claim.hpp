#pragma once
/// @file
/// A binding claim: a model's gradients live in the memory of one wrapper at a time.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/ddp/claims.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A parameter is known by the address of its value. @returns what keeps others from binding these gradients while it
/// lives. @throws Error (invalid_argument) where one is bound already
inline std::unique_ptr<Claim> claim_bindings(std::shared_ptr<Claims> claims, std::span<const Parameter> parameters) {
  auto claim = std::make_unique<Claim>(std::move(claims));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].value.bytes() != 0 && !claim->add(parameters[i].value.data)) {  // a tied one is claimed twice
      throw Error(Errc::invalid_argument, "the gradient of parameter " + std::to_string(i) + " '" + parameters[i].name +
                                              "' lives in another DistributedDataParallel: a model with "
                                              "bind_gradient is wrapped once at a time; destroy the other one first");
    }
  }
  return claim;
}

}  // namespace DTRAIN_NAMESPACE::ddp
