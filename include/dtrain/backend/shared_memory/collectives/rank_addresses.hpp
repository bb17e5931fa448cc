#pragma once
/// @file
/// RankAddresses: one address for each rank, as kernels::Reduction takes them.

#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/shared_memory/control_block.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Stored inline: no allocation while an operation runs.
template <class Pointer>
class RankAddresses {
 public:
  /// `address(rank)` for rank 0 to ranks - 1.
  template <class F>
  RankAddresses(int ranks, F address) noexcept : ranks_(static_cast<std::size_t>(ranks)) {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      addresses_[rank] = address(static_cast<int>(rank));
    }
  }

  // NOLINTNEXTLINE(google-explicit-constructor): it is a list of addresses.
  operator std::span<const Pointer>() const noexcept { return {addresses_.data(), ranks_}; }

 private:
  std::array<Pointer, max_ranks> addresses_;
  std::size_t ranks_;
};

using Sources = RankAddresses<const std::byte*>;
using Targets = RankAddresses<std::byte*>;

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
