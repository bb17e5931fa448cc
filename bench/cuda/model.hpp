#pragma once
/// @file
/// ShapeModel's like on a GPU: nothing but parameters.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/dtrain.hpp"

namespace bench {

/// On the thread's current device. Its gradients live where dtrain places them.
class CudaModel {
 public:
  static constexpr dtrain::DeviceKind device_kind = dtrain::DeviceKind::cuda;

  /// @param sizes of the parameters, in elements, in the order of the forward pass
  explicit CudaModel(const std::vector<std::int64_t>& sizes) {
    std::size_t elements = 0;
    for (const std::int64_t size : sizes) {
      elements += static_cast<std::size_t>(size);
      longest_ = std::max(longest_, static_cast<std::size_t>(size));
    }
    values_ = dtrain::stream::cuda::DeviceBuffer(elements * sizeof(float));
    dtrain::stream::cuda::check(cudaMemset(values_.data(), 0, values_.bytes()), "cudaMemset");
    std::size_t offset = 0;
    for (const std::int64_t size : sizes) {
      const dtrain::Device device{dtrain::DeviceKind::cuda, values_.device()};
      const dtrain::TensorView value{values_.data() + offset, {size}, dtrain::DType::f32, device};
      dtrain::TensorView gradient = value;
      gradient.data = nullptr;
      parameters_.push_back({"parameter" + std::to_string(parameters_.size()), value, gradient});
      offset += value.bytes();
    }
  }

  std::vector<dtrain::Parameter>& parameters() noexcept { return parameters_; }
  void bind_gradient(std::size_t i, const dtrain::TensorView& gradient) { parameters_[i].gradient = gradient; }

  /// Announces every gradient, the last parameter's first, as a backward pass does on that stream.
  template <class Ready>
  void announce(Ready& ready, dtrain::StreamHandle stream) const {
    for (std::size_t i = parameters_.size(); i > 0; --i) {
      ready.ready(i - 1, stream);
    }
  }

  /// Gradient i gets value(i) everywhere. Blocking: until it has.
  template <class Value>
  void fill_blocking(Value value) const {
    std::vector<float> host(longest_);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const dtrain::TensorView& gradient = parameters_[i].gradient;
      std::fill_n(host.begin(), gradient.shape.element_count(), value(i));
      dtrain::stream::cuda::check(cudaMemcpy(gradient.data, host.data(), gradient.bytes(), cudaMemcpyHostToDevice),
                                  "cudaMemcpy");
    }
    dtrain::stream::cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  /// Blocking: copies all gradients to the host. The work that writes them is to be complete.
  /// @throws Error (protocol) unless gradient i is value(i) everywhere
  template <class Value>
  void check_blocking(Value value) const {
    std::vector<float> host(longest_);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const dtrain::TensorView& gradient = parameters_[i].gradient;
      dtrain::stream::cuda::check(cudaMemcpy(host.data(), gradient.data, gradient.bytes(), cudaMemcpyDeviceToHost),
                                  "cudaMemcpy");
      const float wanted = value(i);
      const auto end = host.begin() + static_cast<std::ptrdiff_t>(gradient.shape.element_count());
      if (std::any_of(host.begin(), end, [wanted](float v) { return !(v > wanted - 1e-4F && v < wanted + 1e-4F); })) {
        throw dtrain::Error(dtrain::Errc::protocol, "a reduced gradient is wrong");
      }
    }
  }

 private:
  dtrain::stream::cuda::DeviceBuffer values_;
  std::vector<dtrain::Parameter> parameters_;
  std::size_t longest_ = 0;  ///< gradient, in elements
};

}  // namespace bench
