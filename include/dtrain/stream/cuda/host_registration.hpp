#pragma once
/// @file
/// HostRegistration: borrowed host memory, pinned for a scope.

#include <cstddef>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/check.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Pins memory that begins with a page, so that devices copy from and to it without the processor. Lifetime: the memory
/// outlives it, and it outlives all work on the memory. Blocking: construction and destruction may wait for the device.
class HostRegistration {
 public:
  HostRegistration() noexcept = default;

  /// @throws Error (cuda)
  HostRegistration(std::byte* data, std::size_t bytes) {
    if (bytes == 0) {
      return;
    }
    const cudaError_t code = cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (code != cudaSuccess) {
      throw cuda_error(code, format_text("cudaHostRegister of {} bytes", {bytes}),
                       "look at how much memory may be locked (ulimit -l)");
    }
    data_ = data;
  }

  HostRegistration(HostRegistration&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  HostRegistration& operator=(HostRegistration&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~HostRegistration() {
    if (data_ != nullptr) {
      static_cast<void>(quiet(cudaHostUnregister(data_)));
    }
  }

 private:
  std::byte* data_ = nullptr;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
