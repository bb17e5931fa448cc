#pragma once
/// @file
/// The learning rate of each step.

#include <cmath>
#include <cstdint>
#include <numbers>

namespace shared {

/// Rises linearly to `peak` over the warm-up, then falls along half a cosine to zero.
/// @param step counted from zero, below `steps`.
/// @param warm_up part of the steps in which the rate rises; from 1 on the rate never falls.
inline float learning_rate(std::int64_t step, std::int64_t steps, float peak, double warm_up = 0.05) {
  const double done = (static_cast<double>(step) + 1) / static_cast<double>(steps);
  if (done <= warm_up) return static_cast<float>(peak * done / warm_up);
  return static_cast<float>(peak * 0.5 * (1 + std::cos(std::numbers::pi * (done - warm_up) / (1 - warm_up))));
}

}  // namespace shared
