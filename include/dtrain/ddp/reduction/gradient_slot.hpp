#pragma once
/// @file
/// Gradient slot: address of one gradient in the model, and its address in the arena.

#include <cstddef>
#include <cstring>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A bound gradient lies in the arena: both addresses are the same and nothing is copied.
struct GradientSlot {
  std::byte* own = nullptr;    ///< the parameter's gradient memory
  std::byte* place = nullptr;  ///< in the arena
  std::size_t bytes = 0;

  bool is_bound() const noexcept { return own == place; }

  void pack() const noexcept { pack_from(own); }

  /// `source` is the slot's own memory or memory that does not overlap the arena.
  void pack_from(const std::byte* source) const noexcept {
    if (source != place && bytes != 0) {
      std::memcpy(place, source, bytes);
    }
  }

  void unpack() const noexcept {
    if (!is_bound() && bytes != 0) {
      std::memcpy(own, place, bytes);
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::ddp
