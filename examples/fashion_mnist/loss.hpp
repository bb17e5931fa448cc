#pragma once
/// @file
/// What scores are worth: their cross-entropy with the labels, and how many of them point at the right class.

#include <cmath>
#include <cstdint>
#include <span>

#include "mlp.hpp"

namespace fashion_mnist {

/// Sums over rows, in double so that the number of ranks that share them does not show.
struct Score {
  double cross_entropy = 0;
  double correct = 0;
  double count = 0;
};

/// @param scores one row a sample. @param labels the class of each row.
template <class Scalar>
Score score(const Matrix<Scalar>& scores, std::span<const std::uint8_t> labels) {
  Score sums;
  for (Eigen::Index row = 0; row < scores.rows(); ++row) {
    const Eigen::Index label = labels[static_cast<std::size_t>(row)];
    Eigen::Index best = 0;
    const double highest = static_cast<double>(scores.row(row).maxCoeff(&best));
    double sum = 0;
    for (Eigen::Index k = 0; k < scores.cols(); ++k) {
      sum += std::exp(static_cast<double>(scores(row, k)) - highest);
    }
    sums.cross_entropy += std::log(sum) + highest - static_cast<double>(scores(row, label));
    sums.correct += best == label ? 1 : 0;
    sums.count += 1;
  }
  return sums;
}

}  // namespace fashion_mnist
