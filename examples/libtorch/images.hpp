#pragma once
/// @file
/// Fashion-MNIST as tensors, and batches of it.

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "../fashion_mnist/idx.hpp"

namespace libtorch {

struct Images {
  torch::Tensor pixels;  ///< Byte [n, 1, 28, 28]
  torch::Tensor labels;  ///< Long [n], from 0 to 9

  std::size_t size() const { return static_cast<std::size_t>(labels.size(0)); }
};

struct Batch {
  torch::Tensor inputs;  ///< Float [n, 1, 28, 28], of mean 0 and deviation 1 over the training set
  torch::Tensor labels;
};

/// The first `count` images of `part`, "train" or "t10k", as the files are called, or all where there are fewer.
/// @throws dtrain::Error in one sentence if a file is missing or is not what it should be.
inline Images load_images(const std::string& folder, const std::string& part, std::size_t count) {
  const auto read = [&](const std::string& file, std::uint32_t dimensions) {
    const auto array = std::make_shared<fashion_mnist::IdxArray>(
        fashion_mnist::read_idx(folder + '/' + part + '-' + file + "-ubyte.gz", dimensions));
    const std::vector<std::int64_t> sizes(array->extents.begin(), array->extents.end());
    return torch::from_blob(
        array->elements.data(), sizes, [array](void*) {}, torch::kUInt8);
  };
  torch::Tensor pixels = read("images-idx3", 3);
  torch::Tensor labels = read("labels-idx1", 1).to(torch::kInt64);
  if (pixels.size(1) != 28 || pixels.size(2) != 28 || pixels.size(0) != labels.size(0) ||
      labels.max().item<std::int64_t>() > 9) {
    throw dtrain::Error(dtrain::Errc::protocol, "the files of " + part + " in " + folder +
                                                    " are not images of 28 x 28 with a label from 0 to 9 for each" +
                                                    fashion_mnist::data_remedy());
  }
  const std::int64_t kept = std::min(labels.size(0), static_cast<std::int64_t>(count));
  return {pixels.narrow(0, 0, kept).unsqueeze(1), labels.narrow(0, 0, kept)};
}

inline Batch gather(const Images& images, std::span<const std::size_t> samples) {
  const torch::Tensor indices = torch::empty({static_cast<std::int64_t>(samples.size())}, torch::kInt64);
  std::copy(samples.begin(), samples.end(), indices.data_ptr<std::int64_t>());
  constexpr double mean = 255 * 0.2860;
  constexpr double deviation = 255 * 0.3530;
  return {images.pixels.index_select(0, indices).to(torch::kFloat32).sub_(mean).div_(deviation),
          images.labels.index_select(0, indices)};
}

}  // namespace libtorch
