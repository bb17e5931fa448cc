#pragma once
/// @file
/// Types on the wire: those in which a topology sends f32 elements between nodes.

#include "dtrain/core/types/dtype.hpp"

namespace DTRAIN_NAMESPACE::wire {

/// The elements' own type.
struct Same {};

/// 16 bits with the range of f32.
struct Bf16 {
  static constexpr DType dtype = DType::bf16;
};

/// 16 bits, more precise than Bf16 and up to 65,504. A sum beyond that is infinite; averages in range are not.
struct F16 {
  static constexpr DType dtype = DType::f16;
};

}  // namespace DTRAIN_NAMESPACE::wire
