#pragma once
/// @file
/// The networks of libtorch_bench, as peers/libtorch_pytorch.py has them in Python.

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <torch/torch.h>

namespace bench {

/// Two convolutions with a shortcut, as ResNet-18 has eight of.
class ResidualBlockImpl : public torch::nn::Module {
 public:
  ResidualBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride) {
    const auto convolution = [](std::int64_t from, std::int64_t to, std::int64_t size, std::int64_t step) {
      return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, size).stride(step).padding(size / 2).bias(false));
    };
    main_ = register_module(
        "main", torch::nn::Sequential(convolution(in, out, 3, stride), torch::nn::BatchNorm2d(out), torch::nn::ReLU(),
                                      convolution(out, out, 3, 1), torch::nn::BatchNorm2d(out)));
    shortcut_ = register_module("shortcut", torch::nn::Sequential());
    if (stride != 1 || in != out) {
      shortcut_->push_back(convolution(in, out, 1, stride));
      shortcut_->push_back(torch::nn::BatchNorm2d(out));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor y = main_->forward(x);
    return torch::relu(y + (shortcut_->is_empty() ? x : shortcut_->forward(x)));
  }

 private:
  torch::nn::Sequential main_{nullptr};
  torch::nn::Sequential shortcut_{nullptr};
};
TORCH_MODULE(ResidualBlock);

/// A block of GPT-2 without dropout.
class TransformerBlockImpl : public torch::nn::Module {
 public:
  explicit TransformerBlockImpl(std::int64_t width) : width_(width) {
    first_norm_ = register_module("first_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    attention_ = register_module("attention", torch::nn::Linear(width, 3 * width));
    projection_ = register_module("projection", torch::nn::Linear(width, width));
    second_norm_ = register_module("second_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    grow_ = register_module("grow", torch::nn::Linear(width, 4 * width));
    shrink_ = register_module("shrink", torch::nn::Linear(4 * width, width));
  }
  torch::Tensor forward(torch::Tensor x) {
    constexpr std::int64_t heads = 8;
    const std::int64_t batch = x.size(0);
    const std::int64_t length = x.size(1);
    const auto parts = attention_->forward(first_norm_->forward(x))
                           .view({batch, length, 3, heads, width_ / heads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const torch::Tensor future = torch::ones({length, length}, torch::kBool).triu(1);
    const torch::Tensor weights =
        (parts[0].matmul(parts[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(width_ / heads)))
            .masked_fill(future, -std::numeric_limits<double>::infinity())
            .softmax(-1);
    const torch::Tensor mixed = weights.matmul(parts[2]).transpose(1, 2).reshape({batch, length, width_});
    const torch::Tensor y = x + projection_->forward(mixed);
    return y + shrink_->forward(torch::gelu(grow_->forward(second_norm_->forward(y))));
  }

 private:
  std::int64_t width_;
  torch::nn::LayerNorm first_norm_{nullptr};
  torch::nn::Linear attention_{nullptr};
  torch::nn::Linear projection_{nullptr};
  torch::nn::LayerNorm second_norm_{nullptr};
  torch::nn::Linear grow_{nullptr};
  torch::nn::Linear shrink_{nullptr};
};
TORCH_MODULE(TransformerBlock);

inline constexpr const char* torch_models[] = {"resnet18", "gpt"};

/// ResNet-18 for images of 32 x 32 (11 million weights), or six blocks of width 512 and a head (20 million).
inline torch::nn::Sequential make_network(const std::string& name) {
  torch::nn::Sequential net;
  if (name == "resnet18") {
    net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 3).padding(1).bias(false)));
    net->push_back(torch::nn::BatchNorm2d(64));
    net->push_back(torch::nn::ReLU());
    std::int64_t channels = 64;
    for (const std::int64_t next : {64, 128, 256, 512}) {
      net->push_back(ResidualBlock(channels, next, next == channels ? 1 : 2));
      net->push_back(ResidualBlock(next, next, 1));
      channels = next;
    }
    net->push_back(torch::nn::AdaptiveAvgPool2d(1));
    net->push_back(torch::nn::Flatten());
    net->push_back(torch::nn::Linear(channels, 10));
  } else if (name == "gpt") {
    for (int block = 0; block < 6; ++block) {
      net->push_back(TransformerBlock(512));
    }
    net->push_back(torch::nn::Linear(512, 2048));
  } else {
    throw std::runtime_error("no network is called " + name);
  }
  return net;
}

inline torch::Tensor make_inputs(const std::string& name) {
  return name == "resnet18" ? torch::rand({4, 3, 32, 32}) : torch::rand({2, 32, 512});
}

}  // namespace bench
