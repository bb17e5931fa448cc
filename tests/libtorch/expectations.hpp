#pragma once
/// @file
/// What the checks of dtrain::libtorch are written with.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>
#include <dtrain/libtorch.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace libtorch_probe {

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, dtrain::topology::Flat>;
using Group = dtrain::ProcessGroup<Policy>;
using dtrain::libtorch::BufferPolicy;
using dtrain::libtorch::DistributedDataParallel;
using dtrain::libtorch::ShardedOptimizer;
namespace nn = torch::nn;

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("it does not hold that " + what);
}

/// That what `act` throws says `text`.
template <class Act>
inline void require_error(const std::string& text, Act&& act) {
  try {
    act();
  } catch (const dtrain::Error& error) {
    require(std::string_view(error.what()).find(text) != std::string_view::npos,
            "'" + std::string(error.what()) + "' says '" + text + "'");
    return;
  }
  throw std::runtime_error("nothing was thrown that says '" + text + "'");
}

inline bool are_close(const torch::Tensor& a, const torch::Tensor& b, double tolerance = 1e-5) {
  return torch::allclose(a, b, tolerance, 1e-6);
}

/// Whether all ranks have the same bits there. Collective, blocking.
inline bool is_same_everywhere(const Group& group, const torch::Tensor& tensor) {
  const torch::Tensor mine = tensor.detach().to(torch::kFloat64).contiguous();
  const torch::Tensor least = mine.clone();
  const torch::Tensor most = mine.clone();
  group.all_reduce(dtrain::libtorch::view_of(least).flat(), dtrain::ReduceOp::min);
  group.all_reduce(dtrain::libtorch::view_of(most).flat(), dtrain::ReduceOp::max);
  return torch::equal(least, mine) && torch::equal(most, mine);
}

inline nn::Sequential two_layers(int seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return nn::Sequential(nn::Linear(6, 5), nn::Tanh(), nn::Linear(5, 3));
}

/// Inputs of rank `rank` in step `step`, the same wherever they are asked for.
inline torch::Tensor inputs_of(int rank, int step) {
  return torch::linspace(-1, 1, 4 * 6).reshape({4, 6}) * (rank + 1) + 0.1 * step;
}

inline torch::Tensor loss_of(const torch::Tensor& output) {
  return output.square().mean();
}

}  // namespace libtorch_probe
