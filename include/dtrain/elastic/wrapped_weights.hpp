#pragma once
/// @file
/// summary_of_weights(): a rank's wrapped weights in host memory, as few numbers, for an elastic job's comparison.

#include "dtrain/core/config.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/rendezvous/formation/weights_summary.hpp"

namespace DTRAIN_NAMESPACE::elastic {

/// Whether an elastic job compares its ranks' states: not under DTRAIN_CHECK_VALUES=0.
DTRAIN_ON_USE bool compares_states() noexcept;

/// Equal on all ranks after a step if those that received the state got all that the step reads. Empty under
/// DTRAIN_CHECK_VALUES=0. Blocking: until a ShardedOptimizer's weights are there; at the speed of memory.
DTRAIN_ON_USE rendezvous::WeightsSummary summary_of_weights(const group::RankContext& context);

}  // namespace DTRAIN_NAMESPACE::elastic

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/kernels/conversion.hpp"
#include "dtrain/kernels/digest.hpp"

namespace DTRAIN_NAMESPACE::elastic {

namespace detail {

inline constexpr std::size_t weights_at_once = 512;

/// Reads `to.size()` elements, at most weights_at_once.
inline void read_weights(DType dtype, const std::byte* from, std::span<double> to) noexcept {
  if (dtype == DType::f64) {
    std::memcpy(to.data(), from, to.size_bytes());
    return;
  }
  std::array<float, weights_at_once> floats;
  kernels::convert(dtype, from, DType::f32, reinterpret_cast<std::byte*>(floats.data()), to.size());
  std::copy_n(floats.begin(), to.size(), to.begin());
}

/// Adds a tensor of floating-point weights to the sums. @param first number of the weights before it
/// @returns the sum of the squares
inline double add_weights(const TensorView& tensor, std::uint64_t first, std::array<double, 8>& sums) noexcept {
  std::array<double, weights_at_once> block;
  double squares = 0;
  const std::size_t count = tensor.bytes() / size_bytes(tensor.dtype);
  for (std::size_t begin = 0; begin < count; begin += weights_at_once) {
    const std::size_t here = std::min(weights_at_once, count - begin);
    read_weights(tensor.dtype, tensor.data + begin * size_bytes(tensor.dtype), {block.data(), here});
    for (std::size_t i = 0; i < here; ++i) {
      std::uint64_t hash = (first + begin + i + 1) * 0x9e3779b97f4a7c15U;  // the finalizer of splitmix64, cut
      hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9U;
      const double weight = block[i];
      squares += kernels::is_finite(weight) ? weight * weight : 0;
      sums[i % sums.size()] += hash >> 63 != 0 ? weight : -weight;
    }
  }
  return squares;
}

/// Distance of 1 to the next greater value.
inline double spacing_of(DType dtype) noexcept {
  return dtype == DType::f16 ? 0x1p-10 : dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f64 ? 0x1p-52 : 0x1p-23;
}

}  // namespace detail

DTRAIN_ON_USE bool compares_states() noexcept {
  const char* const checks = std::getenv("DTRAIN_CHECK_VALUES");
  return checks == nullptr || std::string_view(checks) != "0";
}

DTRAIN_ON_USE rendezvous::WeightsSummary summary_of_weights(const group::RankContext& context) {
  rendezvous::WeightsSummary summary;
  if (!compares_states()) return summary;
  summary.digest = kernels::digest_start;
  std::uint64_t count = 0;
  double squares = 0;  // squares of 16 spacings of each weight
  for (const std::weak_ptr<const group::WrappedModel>& each : context.wrapped) {
    const auto model = each.lock();
    if (!model) continue;
    for (const TensorView& tensor : model->list_weights()) {
      if (tensor.device.kind != DeviceKind::host) continue;
      summary.digest = kernels::digest(tensor.data, tensor.bytes(), summary.digest);
      if (!is_float(tensor.dtype)) continue;
      const double spacing = 16 * detail::spacing_of(tensor.dtype);
      squares += spacing * spacing * detail::add_weights(tensor, count, summary.sums);
      count += tensor.bytes() / size_bytes(tensor.dtype);
    }
  }
  summary.rounding = std::sqrt(squares);
  return summary;
}

}  // namespace DTRAIN_NAMESPACE::elastic

#endif  // DTRAIN_DEFINITIONS
