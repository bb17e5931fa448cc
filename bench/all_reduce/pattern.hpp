#pragma once
/// @file
/// The values that are reduced: they depend on rank, index and iteration, and their sums are exact in every element
/// type, so that every byte of a result can be compared.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

/// A prime: no power of two, by which slices may be misplaced, is a multiple of it. peers/all_reduce_gloo.py has the
/// same values.
inline constexpr std::size_t pattern_period = 1021;

class Pattern {
 public:
  Pattern(int rank, int ranks, const std::string& dtype)
      : element_bytes_(dtype == "f32" ? 4 : 2), own_(repeated({rank}, dtype)), sums_(repeated(all_of(ranks), dtype)) {}

  std::size_t element_bytes() const noexcept { return element_bytes_; }

  void fill(std::byte* buffer, std::size_t bytes, std::uint64_t iteration) const {
    for (std::size_t offset = 0; offset < bytes; offset += block_bytes()) {
      std::memcpy(buffer + offset, own_.data() + shift(iteration), std::min(block_bytes(), bytes - offset));
    }
  }

  /// @throws std::runtime_error where an element is not the ranks' sum
  void check(const std::byte* buffer, std::size_t bytes, std::uint64_t iteration) const {
    for (std::size_t offset = 0; offset < bytes; offset += block_bytes()) {
      if (std::memcmp(buffer + offset, sums_.data() + shift(iteration), std::min(block_bytes(), bytes - offset)) != 0) {
        throw std::runtime_error("a result is wrong, within " + std::to_string(block_bytes()) + " bytes from byte " +
                                 std::to_string(offset) + " of " + std::to_string(bytes));
      }
    }
  }

 private:
  static constexpr std::size_t repetitions = 16;

  std::size_t block_bytes() const noexcept { return repetitions * pattern_period * element_bytes_; }
  std::size_t shift(std::uint64_t iteration) const noexcept {
    return static_cast<std::size_t>(iteration * 7 % pattern_period) * element_bytes_;
  }

  static std::vector<int> all_of(int ranks) {
    std::vector<int> list;
    for (int rank = 0; rank < ranks; ++rank) {
      list.push_back(rank);
    }
    return list;
  }

  /// The sums of these ranks' values, 1, 2 or 3 each.
  static std::vector<std::byte> repeated(const std::vector<int>& ranks, const std::string& dtype) {
    std::vector<float> values(pattern_period, 0.0F);
    for (const int rank : ranks) {
      std::uint32_t state = static_cast<std::uint32_t>(rank) + 1;
      for (float& value : values) {
        state = (state * 1103515245U + 12345U) & 0x7fffffffU;
        value += static_cast<float>(1 + (state >> 16) % 3);
      }
    }
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < (repetitions + 1) * pattern_period; ++i) {
      append(bytes, values[i % pattern_period], dtype);
    }
    return bytes;
  }

  /// @param value a whole number between 1 and 2048
  static void append(std::vector<std::byte>& bytes, float value, const std::string& dtype) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    std::size_t size = 4;
    if (dtype == "bf16") {
      bits >>= 16;
      size = 2;
    } else if (dtype == "f16") {
      bits = ((bits >> 13) & 0x3ffU) | (((bits >> 23) - 127 + 15) << 10);
      size = 2;
    }
    const auto* const begin = reinterpret_cast<const std::byte*>(&bits);  // little-endian, as the peers
    bytes.insert(bytes.end(), begin, begin + size);
  }

  std::size_t element_bytes_;
  std::vector<std::byte> own_;
  std::vector<std::byte> sums_;
};

}  // namespace bench
