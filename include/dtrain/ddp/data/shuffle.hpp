#pragma once
/// @file
/// Shuffle: a permutation of 0..n-1 that is the same with every compiler and standard library.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The finaliser of SplitMix64: a bijection of 64-bit numbers whose output bits all depend on all input bits.
/// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014); Vigna's splitmix64.c.
constexpr std::uint64_t mix64(std::uint64_t value) noexcept {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

/// SplitMix64 generator. Its bounded draw is our own, because the standard does not specify distributions' results.
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(std::uint64_t state) noexcept : state_(state) {}

  constexpr std::uint64_t next() noexcept { return mix64(state_ += gamma); }

  /// Uniform in 0..bound-1 without bias: draws below 2^64 mod bound are drawn again. `bound` is not zero.
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    const std::uint64_t excess = (0 - bound) % bound;
    std::uint64_t drawn = next();
    while (drawn < excess) {
      drawn = next();
    }
    return drawn % bound;
  }

  static constexpr std::uint64_t gamma = 0x9e3779b97f4a7c15u;

 private:
  std::uint64_t state_;
};

/// The generator of one epoch. It mixes both seed and epoch, so that neighbouring epochs have unrelated states.
constexpr SplitMix64 epoch_generator(std::uint64_t seed, std::uint64_t epoch) noexcept {
  return SplitMix64(mix64(mix64(seed + SplitMix64::gamma) + epoch));
}

/// Fisher-Yates shuffle, from the last position down, with draws of `epoch_generator(seed, epoch)`.
std::vector<std::size_t> shuffled_order(std::size_t count, std::uint64_t seed, std::uint64_t epoch);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::vector<std::size_t> shuffled_order(std::size_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  SplitMix64 generator = epoch_generator(seed, epoch);
  for (std::size_t place = count; place > 1; --place) {
    std::swap(order[place - 1], order[generator.below(place)]);
  }
  return order;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
