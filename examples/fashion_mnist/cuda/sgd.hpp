#pragma once
/// @file
/// Stochastic gradient descent with Nesterov's momentum, of parameters on a CUDA device.

#include <cstddef>
#include <span>
#include <vector>

#include "dtrain/ddp/parameter.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"
#include "host_copies.hpp"
#include "kernels.hpp"

namespace fashion_mnist {

/// As Sgd; its work goes to the stream that it is given, where the gradients are reduced when a step has finished.
class CudaSgd {
 public:
  CudaSgd(float momentum, dtrain::stream::cuda::StreamRef stream) : momentum_(momentum), stream_(stream) {}

  /// v = momentum v + g; value -= rate (g + momentum v). Enqueued.
  void step(std::span<const dtrain::Parameter> parameters, float rate) {
    namespace cuda = dtrain::stream::cuda;
    prepare(parameters);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const dtrain::TensorView& value = parameters[i].value;
      kernels::nesterov(reinterpret_cast<float*>(value.data),
                        reinterpret_cast<const float*>(parameters[i].gradient.data),
                        reinterpret_cast<float*>(velocity_[i].data()), value.shape.element_count(), rate, momentum_,
                        stream_.native());
      cuda::check(cudaGetLastError(), "launching a kernel");
    }
  }

  /// What it keeps from step to step, for a checkpoint, in memory of the host; take_velocities() after it was written
  /// to. Blocking.
  std::vector<dtrain::NamedTensor> velocities(std::span<const dtrain::Parameter> parameters) {
    prepare(parameters);
    std::vector<std::pair<std::string, dtrain::TensorView>> all;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      dtrain::TensorView view = parameters[i].value;
      view.data = velocity_[i].data();
      all.emplace_back(parameters[i].name + ".velocity", view);
    }
    return saved_.fetch(std::move(all), stream_);
  }
  void take_velocities() const { saved_.put_back(stream_); }

 private:
  void prepare(std::span<const dtrain::Parameter> parameters) {
    namespace cuda = dtrain::stream::cuda;
    for (std::size_t i = velocity_.size(); i < parameters.size(); ++i) {
      const dtrain::TensorView& value = parameters[i].value;
      velocity_.emplace_back(value.bytes(), value.device.index);
      cuda::check(cudaMemsetAsync(velocity_[i].data(), 0, value.bytes(), stream_.native()), "cudaMemsetAsync");
    }
  }

  float momentum_;
  dtrain::stream::cuda::StreamRef stream_;
  std::vector<dtrain::stream::cuda::DeviceBuffer> velocity_;
  HostCopies saved_;
};

}  // namespace fashion_mnist
