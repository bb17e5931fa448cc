#pragma once
/// @file
/// MemoryRanges: the memory of many tensors, among which a tensor is found by its address.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/tensor_view.hpp"

namespace DTRAIN_NAMESPACE {

/// Memory of tensors, which may overlap, at their addresses when they were added. Threads: contains() from any.
class MemoryRanges {
 public:
  MemoryRanges() = default;
  explicit MemoryRanges(const std::vector<TensorView>& tensors);

  /// Whether all of the part's memory lies in that of one tensor: lies_within(part, tensor). Logarithmic.
  bool contains(const TensorView& part) const noexcept;

 private:
  struct MemoryRange {
    const std::byte* begin;
    const std::byte* end;  ///< the greatest of this range and all before it
  };
  std::vector<MemoryRange> ranges_;  ///< sorted by begin
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED MemoryRanges::MemoryRanges(const std::vector<TensorView>& tensors) {
  ranges_.reserve(tensors.size());
  for (const TensorView& tensor : tensors) {
    ranges_.push_back({tensor.data, tensor.data + tensor.bytes()});
  }
  std::sort(ranges_.begin(), ranges_.end(),
            [](const MemoryRange& a, const MemoryRange& b) { return std::less<>{}(a.begin, b.begin); });
  for (std::size_t i = 1; i < ranges_.size(); ++i) {
    ranges_[i].end = std::max(ranges_[i].end, ranges_[i - 1].end, std::less<>{});
  }
}

DTRAIN_DEFINED bool MemoryRanges::contains(const TensorView& part) const noexcept {
  const auto behind = std::upper_bound(
      ranges_.begin(), ranges_.end(), part.data,
      [](const std::byte* data, const MemoryRange& range) { return std::less<>{}(data, range.begin); });
  // A range that begins at the part or before it, and ends where the part does or later, has all of it.
  return behind != ranges_.begin() && !std::less<>{}((behind - 1)->end, part.data + part.bytes());
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE
