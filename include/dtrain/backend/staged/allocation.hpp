#pragma once
/// @file
/// Allocation: device memory, with the host memory through which its operations pass.

#include <cstddef>
#include <memory>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/host_registration.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::backend::staged {

/// Owns both. The host shadow is a pinned allocation of the inner backend, which reduces there without another copy.
/// Lifetime: outlives all work on it; may outlive the communicator.
template <class Inner>
class Allocation {
 public:
  Allocation() noexcept = default;
  Allocation(stream::cuda::DeviceBuffer device, Inner host_shadow)
      : memory_(std::make_shared<DeviceAndHostMemory>(std::move(device), std::move(host_shadow))) {}
  Allocation(Allocation&&) noexcept = default;
  Allocation& operator=(Allocation&&) noexcept = default;

  /// On the device, aligned to 256 bytes.
  std::byte* data() const noexcept { return memory_ ? memory_->device.data() : nullptr; }
  std::size_t bytes() const noexcept { return memory_ ? memory_->device.bytes() : 0; }

  std::byte* host_shadow() const noexcept { return memory_ ? memory_->host_shadow.data() : nullptr; }
  std::weak_ptr<const void> lifetime() const noexcept { return memory_; }

 private:
  /// Destroyed in the reverse order: freeing device memory waits for the work on it.
  struct DeviceAndHostMemory {
    DeviceAndHostMemory(stream::cuda::DeviceBuffer on_device, Inner on_host)
        : host_shadow(std::move(on_host)),
          pinned(host_shadow.data(), host_shadow.bytes()),
          device(std::move(on_device)) {}
    Inner host_shadow;
    stream::cuda::HostRegistration pinned;
    stream::cuda::DeviceBuffer device;
  };

  std::shared_ptr<DeviceAndHostMemory> memory_;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
