#pragma once
/// @file
/// Allocation: device memory, with the host memory through which its operations pass.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

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

/// A communicator's allocations, to find the host shadows of their buffers.
class HostShadowTable {
 public:
  template <class Inner>
  void add(const Allocation<Inner>& memory) {
    std::erase_if(shadows_, [](const HostShadow& shadow) { return shadow.lifetime.expired(); });
    shadows_.push_back({memory.lifetime(), memory.data(), memory.host_shadow(), memory.bytes()});
  }

  /// Host memory of `count` bytes at `device`; null if they are in no allocation. Allocates nothing.
  std::byte* find(const std::byte* device, std::size_t count) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(device);
    for (const HostShadow& shadow : shadows_) {
      const auto begin = reinterpret_cast<std::uintptr_t>(shadow.device);
      if (address >= begin && address - begin <= shadow.bytes && count <= shadow.bytes - (address - begin) &&
          !shadow.lifetime.expired()) {  // else other memory may have these addresses by now
        return shadow.host_shadow + (address - begin);
      }
    }
    return nullptr;
  }

 private:
  struct HostShadow {
    std::weak_ptr<const void> lifetime;
    const std::byte* device;
    std::byte* host_shadow;
    std::size_t bytes;
  };

  std::vector<HostShadow> shadows_;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
