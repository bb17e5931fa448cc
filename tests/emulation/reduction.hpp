#pragma once
/// @file
/// The arithmetic of the emulated reductions: scalar, in the order of the ranks, rounded after each step.

#include <nccl.h>

#include <cstddef>
#include <span>

namespace emulation {

/// What is done to elements; `scalar` is what each is multiplied by first, and ncclAvg's is 1/ranks for floats.
struct Reduction {
  ncclRedOp_t kind = ncclSum;  // a built-in one; a sum where it is scaled
  bool is_scaled = false;
  double scalar = 1;
};

/// 0 for types that the emulation does not know.
std::size_t element_bytes(ncclDataType_t type) noexcept;
bool is_floating(ncclDataType_t type) noexcept;

/// out[i] = inputs[0][i] op inputs[1][i] op ... ; `out` may be one of the inputs.
void reduce(ncclDataType_t type, const Reduction& reduction, std::span<const std::byte* const> inputs, std::byte* out,
            std::size_t count);

/// A scalar as it lies in memory.
double scalar_at(const void* scalar, ncclDataType_t type);

}  // namespace emulation
