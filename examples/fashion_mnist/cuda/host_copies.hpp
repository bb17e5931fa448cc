#pragma once
/// @file
/// Copies on the host of tensors of a CUDA device, for checkpoints.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace fashion_mnist {

/// Blocking: both directions wait for what the stream holds. Lifetime: what fetch() gives is valid until the next one.
class HostCopies {
 public:
  /// The values of device tensors as they are now. @param names one for each
  std::vector<dtrain::NamedTensor> fetch(std::vector<std::pair<std::string, dtrain::TensorView>> tensors,
                                         dtrain::stream::cuda::StreamRef stream) {
    namespace cuda = dtrain::stream::cuda;
    tensors_ = std::move(tensors);
    copies_.resize(tensors_.size());
    std::vector<dtrain::NamedTensor> all;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const auto& [name, device] = tensors_[i];
      copies_[i].resize(device.shape.element_count());
      cuda::check(
          cudaMemcpyAsync(copies_[i].data(), device.data, device.bytes(), cudaMemcpyDeviceToHost, stream.native()),
          "cudaMemcpyAsync");
      all.push_back({name, dtrain::tensor_view(copies_[i].data(), device.shape)});
    }
    cuda::check(cudaStreamSynchronize(stream.native()), "cudaStreamSynchronize");
    return all;
  }

  /// Gives the device what the last fetch()'s copies hold now.
  void put_back(dtrain::stream::cuda::StreamRef stream) const {
    namespace cuda = dtrain::stream::cuda;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const dtrain::TensorView& device = tensors_[i].second;
      cuda::check(
          cudaMemcpyAsync(device.data, copies_[i].data(), device.bytes(), cudaMemcpyHostToDevice, stream.native()),
          "cudaMemcpyAsync");
    }
    cuda::check(cudaStreamSynchronize(stream.native()), "cudaStreamSynchronize");
  }

 private:
  std::vector<std::pair<std::string, dtrain::TensorView>> tensors_;
  std::vector<std::vector<float>> copies_;
};

}  // namespace fashion_mnist
