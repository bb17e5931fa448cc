#pragma once
/// @file
/// The gradients of two published models and of two of the examples, in elements and in the order of the forward pass.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/error.hpp"

namespace bench {

struct ModelShapes {
  std::string name;
  std::vector<std::int64_t> sizes;

  std::int64_t elements() const noexcept {
    std::int64_t sum = 0;
    for (const std::int64_t size : sizes) {
      sum += size;
    }
    return sum;
  }
};

/// He et al., arXiv:1512.03385, as torchvision.models.resnet50: 161 gradients of 25,557,032 elements.
inline ModelShapes resnet50() {
  ModelShapes model{"resnet50", {}};
  const auto convolution = [&](std::int64_t in, std::int64_t out, std::int64_t kernel) {
    model.sizes.insert(model.sizes.end(), {out * in * kernel * kernel, out, out});  // and its normalisation's two
  };
  convolution(3, 64, 7);
  std::int64_t in = 64;
  const struct {
    int blocks;
    std::int64_t planes;
  } stages[] = {{3, 64}, {4, 128}, {6, 256}, {3, 512}};
  for (const auto& stage : stages) {
    for (int block = 0; block < stage.blocks; ++block) {
      convolution(in, stage.planes, 1);
      convolution(stage.planes, stage.planes, 3);
      convolution(stage.planes, 4 * stage.planes, 1);
      if (block == 0) {
        convolution(in, 4 * stage.planes, 1);  // of the shortcut
      }
      in = 4 * stage.planes;
    }
  }
  model.sizes.insert(model.sizes.end(), {in * 1000, 1000});
  return model;
}

/// A transformer as GPT-2 (Radford et al. 2019); the output layer is the token embedding.
inline ModelShapes transformer(std::string name, std::int64_t vocabulary, std::int64_t context, int layer_count,
                               std::int64_t width) {
  ModelShapes model{std::move(name), {vocabulary * width, context * width}};
  for (int layer = 0; layer < layer_count; ++layer) {
    for (const std::int64_t size : {width, width,                  // normalisation
                                    width * 3 * width, 3 * width,  // attention
                                    width * width, width,          //
                                    width, width,                  // normalisation
                                    width * 4 * width, 4 * width,  // the two layers
                                    4 * width * width, width}) {
      model.sizes.push_back(size);
    }
  }
  model.sizes.insert(model.sizes.end(), {width, width});
  return model;
}

/// As the "gpt2" that OpenAI published: 148 gradients of 124,439,808 elements.
inline ModelShapes gpt2() {
  return transformer("gpt2-124m", 50257, 1024, 12, 768);
}

/// A transformer of the size of examples/gpt2: 52 gradients of 834,304 elements.
inline ModelShapes small_gpt2() {
  return transformer("gpt2-834k", 256, 64, 4, 128);
}

/// The network of examples/fashion_mnist: 6 gradients of 235,146 elements.
inline ModelShapes fashion_mnist() {
  return {"fashion-mnist", {784 * 256, 256, 256 * 128, 128, 128 * 10, 10}};
}

/// @throws Error (usage) where none is called so
inline ModelShapes model_named(std::string_view name) {
  for (ModelShapes& model : std::vector<ModelShapes>{resnet50(), gpt2(), small_gpt2(), fashion_mnist()}) {
    if (model.name == name) {
      return std::move(model);
    }
  }
  throw dtrain::Error(dtrain::Errc::usage, "no model is called " + std::string(name));
}

/// The one of that name, or both where it is empty. @throws Error (usage)
inline std::vector<ModelShapes> models_of(std::string_view name) {
  return name.empty() ? std::vector<ModelShapes>{resnet50(), gpt2()} : std::vector<ModelShapes>{model_named(name)};
}

/// The same, or all four.
inline std::vector<ModelShapes> with_examples(std::string_view name) {
  return name.empty() ? std::vector<ModelShapes>{fashion_mnist(), small_gpt2(), resnet50(), gpt2()} : models_of(name);
}

}  // namespace bench
