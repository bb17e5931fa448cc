#pragma once
/// @file
/// Nets, samples and comparisons of the CUDA probe: they are made on the host from seeds and copied to the device.

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/torch.h>
#include <dtrain/dtrain.hpp>
#include <dtrain/libtorch.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace cuda_probe {

namespace nn = torch::nn;

inline torch::Device device() {
  return {torch::kCUDA, c10::cuda::current_device()};
}

/// Counts the checks of this rank that do not hold, and names each.
class Checks {
 public:
  explicit Checks(int rank) : rank_(rank) {}

  void require(bool holds, const std::string& what) {
    ++made_;
    if (holds) return;
    ++wrong_;
    std::printf("WRONG on rank %d: it does not hold that %s\n", rank_, what.c_str());
  }
  /// @param tolerance of each element: relative, and a tenth of it absolute
  void require_close(const torch::Tensor& a, const torch::Tensor& b, double tolerance, const std::string& what) {
    const double off = a.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
    require(torch::allclose(a, b, tolerance, tolerance / 10), what + " (off by " + std::to_string(off * 1e9) + "e-9)");
  }

  int made() const noexcept { return made_; }
  int wrong() const noexcept { return wrong_; }

 private:
  int rank_, made_ = 0, wrong_ = 0;
};

inline constexpr std::int64_t long_sleep = 400'000'000;  ///< cycles of the device: about 0.2 s

/// A point in LibTorch's current stream.
class Point {
 public:
  Point() {
    dtrain::stream::cuda::check(cudaEventCreate(&event_), "cudaEventCreate");
    dtrain::stream::cuda::check(cudaEventRecord(event_, c10::cuda::getCurrentCUDAStream().stream()), "cudaEventRecord");
  }
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;
  ~Point() { static_cast<void>(cudaEventDestroy(event_)); }

  bool is_reached() const {
    const cudaError_t code = cudaEventQuery(event_);
    if (code != cudaErrorNotReady) dtrain::stream::cuda::check(code, "cudaEventQuery");
    return code == cudaSuccess;
  }
  /// Both are reached. @returns microseconds
  float since(const Point& earlier) const {
    float milliseconds = 0;
    dtrain::stream::cuda::check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "cudaEventElapsedTime");
    return 1000 * milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

inline constexpr std::int64_t whole_batch = 24;  ///< samples of all ranks together: divisible by 1, 2, 3 and 4

struct Samples {
  torch::Tensor inputs, targets;

  /// The part of rank `rank`.
  Samples part(int rank, int ranks) const {
    const std::int64_t count = whole_batch / ranks;
    return {inputs.narrow(0, rank * count, count), targets.narrow(0, rank * count, count)};
  }
};

inline Samples samples(int step, torch::Dtype dtype) {
  torch::manual_seed(1000 + static_cast<std::uint64_t>(step));
  const torch::Tensor inputs = torch::randn({whole_batch, 3, 12, 12});
  return {inputs.to(device(), dtype), torch::randn({whole_batch, 10}).to(device(), dtype)};
}

inline void fill(const nn::Module& module, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(seed);
  for (torch::Tensor parameter : module.parameters())
    parameter.copy_(torch::randn(parameter.sizes()) * 0.2);
}

inline nn::Sequential conv_net(bool has_batch_norm, torch::Dtype dtype, std::uint64_t seed) {
  nn::Sequential net;
  net->push_back(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)));
  if (has_batch_norm) net->push_back(nn::BatchNorm2d(8));
  net->push_back(nn::ReLU());
  net->push_back(nn::Conv2d(nn::Conv2dOptions(8, 16, 3).stride(2)));
  if (has_batch_norm) net->push_back(nn::BatchNorm2d(16));
  net->push_back(nn::ReLU());
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear(16 * 5 * 5, 10));
  net->to(device(), dtype);
  fill(*net, seed);
  return net;
}

/// Parameters, then buffers.
inline std::vector<torch::Tensor> state_of(const nn::Module& module, bool with_buffers = true) {
  std::vector<torch::Tensor> state;
  for (const torch::Tensor& parameter : module.parameters())
    state.push_back(parameter.detach());
  if (with_buffers) {
    for (const torch::Tensor& buffer : module.buffers())
      state.push_back(buffer);
  }
  return state;
}

/// Elements of any type of 4 or 8 bytes, as integers.
inline torch::Tensor bits_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> bits;
  for (const torch::Tensor& tensor : tensors)
    bits.push_back(tensor.detach().contiguous().reshape({-1}).view(torch::kInt32));
  return torch::cat(bits);
}

inline bool have_same_bits(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return torch::equal(bits_of(a), bits_of(b));
}

/// Whether all ranks have the same bits there. Collective, blocking.
template <class Group>
bool is_same_everywhere(const Group& group, const std::vector<torch::Tensor>& tensors) {
  const torch::Tensor least = bits_of(tensors), most = least.clone();
  torch::cuda::synchronize();
  group.all_reduce(dtrain::libtorch::view_of(least).flat(), dtrain::ReduceOp::min);
  group.all_reduce(dtrain::libtorch::view_of(most).flat(), dtrain::ReduceOp::max);
  return torch::equal(least, most);
}

/// Two convolutions with BatchNorm beside a shorter way.
struct BlockImpl : nn::Module {
  BlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride) {
    const auto convolution = [](std::int64_t from, std::int64_t to, std::int64_t width, std::int64_t step) {
      return nn::Conv2d(nn::Conv2dOptions(from, to, width).stride(step).padding(width / 2).bias(false));
    };
    long_way =
        register_module("long_way", nn::Sequential(convolution(in, out, 3, stride), nn::BatchNorm2d(out), nn::ReLU(),
                                                   convolution(out, out, 3, 1), nn::BatchNorm2d(out)));
    if (in != out || stride != 1) {
      short_way = register_module("short_way", nn::Sequential(convolution(in, out, 1, stride), nn::BatchNorm2d(out)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(long_way->forward(x) + (short_way.is_empty() ? x : short_way->forward(x)));
  }
  nn::Sequential long_way{nullptr}, short_way{nullptr};
};
TORCH_MODULE(Block);

/// ResNet-18 for images of 32 x 32: 20 convolutions and BatchNorms, 11.2 million parameters.
inline nn::Sequential resnet18() {
  torch::manual_seed(1);
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 64, 3).padding(1).bias(false)), nn::BatchNorm2d(64), nn::ReLU());
  std::int64_t in = 64;
  for (const std::int64_t out : {64, 128, 256, 512}) {
    net->push_back(Block(in, out, out == 64 ? 1 : 2));
    net->push_back(Block(out, out, 1));
    in = out;
  }
  net->push_back(nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions(1)));
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear(512, 10));
  net->to(device());
  return net;
}

}  // namespace cuda_probe
