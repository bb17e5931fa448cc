#pragma once
/// @file
/// SplitMix64: the generator that initial weights come from, the same numbers on every machine.

#include <cstdint>

namespace shared {

/// Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

  /// One of 2^24 values, evenly spaced in [-1, 1): a float has them all exactly.
  float symmetric() noexcept { return static_cast<float>(next() >> 40) * 0x1p-23F - 1.0F; }

  /// An integer below `bound`, which is far below 2^32: its bias is then beyond notice.
  std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }

 private:
  std::uint64_t state_;
};

}  // namespace shared
