#pragma once
/// @file
/// Ready times of a backward pass, for dtrain's model of a step (dtrain/ddp/planning/plan_search.hpp).

#include <cstddef>
#include <vector>

namespace bench {

/// Ready times of a backward pass that takes as long for each parameter, the last one's first.
inline std::vector<double> evenly_ready(std::size_t parameters, double forward, double backward) {
  std::vector<double> ready(parameters);
  for (std::size_t i = 0; i < parameters; ++i) {
    ready[i] = forward + backward * static_cast<double>(parameters - i) / static_cast<double>(parameters);
  }
  return ready;
}

}  // namespace bench
