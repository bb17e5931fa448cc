#pragma once
/// @file
/// PresentValue: where the value of a parameter is, in models whose values move.

#include <cstddef>
#include <cstdint>
#include <functional>

#include "dtrain/core/types/tensor_view.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The value of a parameter in its present memory.
struct PresentValue {
  TensorView view;
  std::uint64_t moves = 0;  ///< changes with each move, even if the other memory has the same address
};

/// Gives the present value of parameter i. May outlive the model. Threads: those of the model's steps. @throws Error
/// for a value that has become another kind of tensor
using ReadValue = std::function<PresentValue(std::size_t parameter)>;

}  // namespace DTRAIN_NAMESPACE::ddp
