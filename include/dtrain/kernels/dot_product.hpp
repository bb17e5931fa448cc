#pragma once
/// @file
/// Dot product of floats in host memory, a kernel for hooks::Adasum and low_rank.hpp (ddp/), in an order that depends
/// on the count alone.

#include <cstddef>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::kernels {

/// Element i is added to partial sum i modulo `lanes`, in `Sum`; these are added in order, and then the elements that
/// fill no more lanes. Threads: any.
template <class Sum, std::size_t lanes>
DTRAIN_OPTIMIZED Sum dot_product(const float* a, const float* b, std::size_t count) noexcept {
  Sum sums[lanes] = {};
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      sums[lane] += static_cast<Sum>(a[i + lane]) * static_cast<Sum>(b[i + lane]);
    }
  }
  Sum sum = 0;
  for (const Sum lane : sums) {
    sum += lane;
  }
  for (; i < count; ++i) {
    sum += static_cast<Sum>(a[i]) * static_cast<Sum>(b[i]);
  }
  return sum;
}

}  // namespace DTRAIN_NAMESPACE::kernels
