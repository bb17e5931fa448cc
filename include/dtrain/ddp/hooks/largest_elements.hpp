#pragma once
/// @file
/// LargestElements: the elements of the largest absolute values.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Radix selection by the bits of the absolute value, in three passes over the values. Threads: one at a time.
class LargestElements {
 public:
  /// Writes the indices of the k values with the largest absolute values, in ascending order; of equal values the
  /// first. A NaN is larger than infinity.
  /// @param values at most 2^32 - 1
  /// @param indices at least `k`; @param k at most the number of values
  void select(std::span<const float> values, std::size_t k, std::uint32_t* indices) noexcept;

 private:
  static constexpr unsigned low_bits = 15;

  /// @returns the digit of the k-th largest; k becomes its place among the values of that digit
  std::uint32_t digit_of(std::size_t& k) const noexcept;

  std::vector<std::uint32_t> counts_ = std::vector<std::uint32_t>(std::size_t{1} << 16);
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <bit>

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

inline std::uint32_t absolute_bits(float value) noexcept {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
}

}  // namespace detail

DTRAIN_DEFINED std::uint32_t LargestElements::digit_of(std::size_t& k) const noexcept {
  std::size_t digit = counts_.size() - 1;
  while (counts_[digit] < k) {
    k -= counts_[digit];
    --digit;
  }
  return static_cast<std::uint32_t>(digit);
}

DTRAIN_DEFINED void LargestElements::select(std::span<const float> values, std::size_t k,
                                            std::uint32_t* indices) noexcept {
  if (k == 0) return;
  std::fill(counts_.begin(), counts_.end(), 0U);
  for (const float value : values) {
    ++counts_[detail::absolute_bits(value) >> low_bits];
  }
  std::size_t left = k;
  const std::uint32_t high = digit_of(left);
  std::fill(counts_.begin(), counts_.end(), 0U);
  for (const float value : values) {
    const std::uint32_t bits = detail::absolute_bits(value);
    if (bits >> low_bits == high) ++counts_[bits & ((1U << low_bits) - 1)];
  }
  const std::uint32_t least = (high << low_bits) + digit_of(left);  // `left` values of these bits are chosen
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = detail::absolute_bits(values[i]);
    if (bits > least || (bits == least && left != 0)) {
      left -= bits == least ? 1 : 0;
      *indices++ = static_cast<std::uint32_t>(i);
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
