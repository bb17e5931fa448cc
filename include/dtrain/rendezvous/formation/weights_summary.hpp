#pragma once
/// @file
/// WeightsSummary: a rank's weights in few numbers, which an elastic job compares. differs_by_rounding(): whether
/// rounding alone explains it.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Equal weights have equal digests. The sums tell how far unequal ones are from each other: each is of an eighth of
/// the weights, with a random sign for each weight, the same on every rank. So the squares of the differences of two
/// ranks' sums add up to the square of the norm of their weights' difference, in the mean. (Johnson and Lindenstrauss,
/// "Extensions of Lipschitz mappings into a Hilbert space", 1984; the signs: Achlioptas, "Database-friendly random
/// projections", 2001.)
struct WeightsSummary {
  std::uint64_t digest = 0;  ///< 0: the weights are not compared
  double rounding = 0;       ///< norm that differences of rounding may have
  std::array<double, 8> sums{};
};

/// Whether the weights of two ranks that have unequal digests may differ by rounding alone, as those of hosts whose
/// processors or libraries round an optimizer's step differently. A step without a part of the optimizer's state
/// differs by far more.
inline bool differs_by_rounding(const WeightsSummary& a, const WeightsSummary& b) noexcept {
  double squares = 0;
  for (std::size_t i = 0; i < a.sums.size(); ++i) {
    const bool is_finite = kernels::is_finite(a.sums[i]);
    if (is_finite != kernels::is_finite(b.sums[i])) return false;
    const double difference = is_finite ? a.sums[i] - b.sums[i] : 0;
    squares += difference * difference;
  }
  return std::sqrt(squares) <= a.rounding + b.rounding;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
