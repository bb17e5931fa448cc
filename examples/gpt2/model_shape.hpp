#pragma once
/// @file
/// The sizes of a model, and what it takes of memory.

#include <cstdint>

#include "matrix.hpp"

namespace gpt2 {

/// Tokens are bytes.
inline constexpr Index vocabulary = 256;

struct ModelShape {
  Index layers = 4;
  Index channels = 128;
  Index heads = 4;      ///< divides the channels
  Index context = 128;  ///< tokens of a sequence

  Index head_channels() const noexcept { return channels / heads; }
};

/// Weights and biases of the whole model.
inline std::uint64_t parameter_count(const ModelShape& shape) noexcept {
  const auto channels = static_cast<std::uint64_t>(shape.channels);
  const auto rows = static_cast<std::uint64_t>(vocabulary + shape.context);
  return rows * channels + static_cast<std::uint64_t>(shape.layers) * (12 * channels * channels + 13 * channels) +
         2 * channels;
}

/// Elements that a model keeps of the activations of `sequences` sequences, and of the derivatives by them.
inline std::uint64_t activation_count(const ModelShape& shape, Index sequences) noexcept {
  const auto tokens = static_cast<std::uint64_t>(sequences * shape.context);
  const auto channels = static_cast<std::uint64_t>(shape.channels);
  const auto probabilities = static_cast<std::uint64_t>(shape.heads * shape.context);
  const std::uint64_t of_block = 16 * channels + probabilities;
  return tokens *
         (static_cast<std::uint64_t>(shape.layers) * of_block + 12 * channels + static_cast<std::uint64_t>(vocabulary));
}

}  // namespace gpt2
