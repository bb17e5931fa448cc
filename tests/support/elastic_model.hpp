#pragma once
/// @file
/// The training of tests of elastic jobs: least squares on samples that are numbers, so that its weights after a step
/// follow from the numbers of ranks in the steps before.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/data/sampler.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/ready.hpp"

namespace support {

/// `Width` weights in each of three layers.
template <std::size_t Width>
struct LayeredModel {
  static constexpr std::size_t layers = 3;
  static constexpr std::size_t width = Width;

  explicit LayeredModel(float initial) : values(layers, std::vector<float>(width, initial)) {
    for (auto& each : own) {
      gradients.push_back(each.data());
    }
  }
  LayeredModel(const LayeredModel&) = delete;
  LayeredModel& operator=(const LayeredModel&) = delete;

  std::vector<dtrain::Parameter> parameters() {
    std::vector<dtrain::Parameter> found;
    for (std::size_t i = 0; i < layers; ++i) {
      found.push_back({"layer" + std::to_string(i), dtrain::tensor_view(values[i]),
                       dtrain::tensor_view(gradients[i], {static_cast<std::int64_t>(width)})});
    }
    return found;
  }

  std::uint32_t digest() const {
    std::uint32_t hash = 2166136261u;
    for (const auto& each : values) {
      for (const float value : each) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof(bits));
        hash = (hash ^ bits) * 16777619u;
      }
    }
    return hash;
  }

  std::vector<std::vector<float>> values;
  std::vector<std::vector<float>> own{layers, std::vector<float>(width)};
  std::vector<float*> gradients;
};

/// The same model with gradients that dtrain binds.
template <class Model>
struct Bound : Model {
  void bind_gradient(std::size_t i, dtrain::TensorView where) {
    this->gradients[i] = reinterpret_cast<float*>(where.data);
  }
};

struct ElasticModel : LayeredModel<500> {
  static constexpr dtrain::SamplerOptions samples{.dataset_size = 1000, .global_batch = 60, .seed = 1};

  ElasticModel() : LayeredModel(1) {}

  /// The gradient of the mean over the samples of (value * sample / 1000 - 1)^2 / 2, times `weight`.
  void backward(std::span<const std::size_t> of, float weight, dtrain::Ready ready) {
    for (std::size_t i = layers; i-- > 0;) {
      for (std::size_t j = 0; j < width; ++j) {
        float sum = 0;
        for (const std::size_t sample : of) {
          const float x = static_cast<float>(sample) / 1000.0F;
          sum += (values[i][j] * x - 1) * x;
        }
        gradients[i][j] = weight * sum / static_cast<float>(of.size());
      }
      ready(i);
    }
  }

  void update() {
    for (std::size_t i = 0; i < layers; ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        values[i][j] -= 0.1F * gradients[i][j];
      }
    }
  }
};

}  // namespace support
