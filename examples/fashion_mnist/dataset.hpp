#pragma once
/// @file
/// Fashion-MNIST in memory: images of 28 x 28 grey values, a class from 0 to 9 for each, and batches of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../shared/random.hpp"
#include "idx.hpp"
#include "mlp.hpp"

namespace fashion_mnist {

inline constexpr std::size_t image_pixels = 28 * 28;
inline constexpr std::size_t class_count = 10;

/// Mean and standard deviation of the training set's grey values, in units of white.
inline constexpr float grey_mean = 0.2860F;
inline constexpr float grey_deviation = 0.3530F;

struct Dataset {
  std::vector<std::uint8_t> images;  ///< one after the other, row by row
  std::vector<std::uint8_t> labels;

  std::size_t size() const noexcept { return labels.size(); }
};

/// @param part "train" or "t10k", as the files are called.
/// @throws dtrain::Error in one sentence if a file is missing or is not what it should be.
inline Dataset load_dataset(const std::string& folder, const std::string& part) {
  const std::string images_path = folder + '/' + part + "-images-idx3-ubyte.gz";
  const std::string labels_path = folder + '/' + part + "-labels-idx1-ubyte.gz";
  IdxArray images = read_idx(images_path, 3);
  IdxArray labels = read_idx(labels_path, 1);
  const auto refuse = [](const std::string& sentence) {
    throw dtrain::Error(dtrain::Errc::protocol, sentence + data_remedy());
  };
  if (images.extents[1] != 28 || images.extents[2] != 28) {
    refuse("the images in " + images_path + " are " + std::to_string(images.extents[1]) + " x " +
           std::to_string(images.extents[2]) + " instead of 28 x 28");
  }
  if (images.extents[0] != labels.extents[0]) {
    refuse(images_path + " has " + std::to_string(images.extents[0]) + " images but " + labels_path + " has " +
           std::to_string(labels.extents[0]) + " labels");
  }
  const auto wrong = std::find_if(labels.elements.begin(), labels.elements.end(),
                                  [](std::uint8_t label) { return label >= class_count; });
  if (wrong != labels.elements.end()) {
    refuse("label " + std::to_string(wrong - labels.elements.begin()) + " in " + labels_path + " is " +
           std::to_string(*wrong) + " instead of 0 to 9");
  }
  return {std::move(images.elements), std::move(labels.elements)};
}

/// Puts the labels into a random order (Fisher and Yates), which takes all meaning from them.
inline void shuffle_labels(Dataset& dataset, std::uint64_t seed) {
  shared::SplitMix64 random(seed);
  for (std::size_t i = dataset.size(); i > 1; --i) {
    std::swap(dataset.labels[i - 1], dataset.labels[random.below(i)]);
  }
}

/// Makes `batch` the samples at `indices`, standardised: grey values of mean 0 and deviation 1.
/// @throws nothing for indices below dataset.size(); others are a mistake of the caller.
inline void gather(const Dataset& dataset, std::span<const std::size_t> indices, Batch<float>& batch) {
  batch.inputs.resize(static_cast<Eigen::Index>(indices.size()), static_cast<Eigen::Index>(image_pixels));
  batch.labels.resize(indices.size());
  constexpr float scale = 1.0F / (255.0F * grey_deviation);
  constexpr float offset = -grey_mean / grey_deviation;
  for (std::size_t row = 0; row < indices.size(); ++row) {
    const std::uint8_t* pixels = dataset.images.data() + indices[row] * image_pixels;
    float* values = batch.inputs.data() + row * image_pixels;
    for (std::size_t i = 0; i < image_pixels; ++i) {
      values[i] = static_cast<float>(pixels[i]) * scale + offset;
    }
    batch.labels[row] = dataset.labels[indices[row]];
  }
}

}  // namespace fashion_mnist
