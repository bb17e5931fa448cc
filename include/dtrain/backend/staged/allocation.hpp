#pragma once
/// @file
/// Device memory with a twin on the host that its operations go through.

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

/// Owns both. The twin is the inner backend's own allocation, pinned: it reduces there without another copy.
/// Lifetime: outlives all work on it; may outlive the communicator.
template <class Inner>
class Allocation {
 public:
  Allocation() noexcept = default;
  Allocation(stream::cuda::DeviceBuffer device, Inner twin)
      : memory_(std::make_shared<Memory>(std::move(device), std::move(twin))) {}
  Allocation(Allocation&&) noexcept = default;
  Allocation& operator=(Allocation&&) noexcept = default;

  /// On the device, aligned to 256 bytes.
  std::byte* data() const noexcept { return memory_ ? memory_->device.data() : nullptr; }
  std::size_t bytes() const noexcept { return memory_ ? memory_->device.bytes() : 0; }

  std::byte* twin() const noexcept { return memory_ ? memory_->twin.data() : nullptr; }
  std::weak_ptr<const void> life() const noexcept { return memory_; }

 private:
  /// Members go in the reverse order: freeing device memory waits for the work on it.
  struct Memory {
    Memory(stream::cuda::DeviceBuffer on_device, Inner on_host)
        : twin(std::move(on_host)), pinned(twin.data(), twin.bytes()), device(std::move(on_device)) {}
    Inner twin;
    stream::cuda::HostRegistration pinned;
    stream::cuda::DeviceBuffer device;
  };

  std::shared_ptr<Memory> memory_;
};

/// What a communicator remembers of its allocations, to find the twins of buffers in them.
class TwinTable {
 public:
  template <class Inner>
  void add(const Allocation<Inner>& memory) {
    std::erase_if(entries_, [](const Entry& entry) { return entry.life.expired(); });
    entries_.push_back({memory.life(), memory.data(), memory.twin(), memory.bytes()});
  }

  /// The host memory of `count` bytes at `device`; null where these are in no allocation. Allocates nothing.
  std::byte* find(const std::byte* device, std::size_t count) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(device);
    for (const Entry& entry : entries_) {
      const auto begin = reinterpret_cast<std::uintptr_t>(entry.device);
      if (address >= begin && address - begin <= entry.bytes && count <= entry.bytes - (address - begin) &&
          !entry.life.expired()) {  // else the addresses may be somebody else's by now
        return entry.twin + (address - begin);
      }
    }
    return nullptr;
  }

 private:
  struct Entry {
    std::weak_ptr<const void> life;
    const std::byte* device;
    std::byte* twin;
    std::size_t bytes;
  };

  std::vector<Entry> entries_;
};

}  // namespace DTRAIN_NAMESPACE::backend::staged

#endif  // DTRAIN_WITH_CUDA
