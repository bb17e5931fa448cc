#pragma once
/// @file
/// What the training asks all ranks together, each on a few numbers. Every function here is collective and blocking.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/crypto.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/reduce_op.hpp"

namespace shared {

/// Every rank's `own`, which has the same size on all of them, rank 0's first. Each number travels as a sum with zeros,
/// which is exact.
template <class Group>
std::vector<double> gather(const Group& group, std::span<const double> own) {
  std::vector<double> all(own.size() * static_cast<std::size_t>(group.world_size()));
  for (std::size_t i = 0; i < own.size(); ++i) {
    all[own.size() * static_cast<std::size_t>(group.rank()) + i] = own[i];
  }
  group.all_reduce(std::span(all), dtrain::ReduceOp::sum);
  return all;
}

template <class Group>
double largest(const Group& group, double own) {
  group.all_reduce(std::span(&own, 1), dtrain::ReduceOp::max);
  return own;
}

/// @throws dtrain::Error (disagreement) on every rank, naming the ranks whose digest is not rank 0's.
template <class Group>
void require_same_everywhere(const Group& group, const dtrain::Sha256Digest& digest) {
  std::vector<double> own;
  for (const std::byte value : digest) {
    own.push_back(std::to_integer<int>(value));
  }
  const std::vector<double> all = gather(group, own);
  std::string different;
  for (std::size_t rank = 1; rank * own.size() < all.size(); ++rank) {
    const std::span<const double> row = std::span(all).subspan(rank * own.size(), own.size());
    if (!std::equal(row.begin(), row.end(), all.begin())) {
      different += (different.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  if (!different.empty()) {
    throw dtrain::Error(dtrain::Errc::disagreement,
                        "after the training the parameters of rank " + different +
                            " differ from those of rank 0; all ranks are to run the same program on the same data");
  }
}

}  // namespace shared
