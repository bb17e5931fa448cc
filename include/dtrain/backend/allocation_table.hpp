#pragma once
/// @file
/// HostAllocation: memory that a host backend allocates for a rank. AllocationTable: finds the allocation that a buffer
/// is in.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Owns `bytes()` bytes, aligned to 4 KiB at least. Movable; may outlive the communicator.
class HostAllocation {
 public:
  HostAllocation() noexcept = default;
  HostAllocation(std::shared_ptr<std::byte> memory, std::size_t bytes) noexcept
      : memory_(std::move(memory)), bytes_(bytes) {}
  HostAllocation(HostAllocation&&) noexcept = default;
  HostAllocation& operator=(HostAllocation&&) noexcept = default;

  std::byte* data() const noexcept { return memory_.get(); }
  std::size_t bytes() const noexcept { return memory_ ? bytes_ : 0; }

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_ = 0;
};

/// @tparam Value what is recorded of an allocation; a value-initialized one stands for no allocation
template <class Value>
class AllocationTable {
 public:
  struct Location {
    Value value{};
    std::size_t offset = 0;
  };

  /// @param lifetime expires with the allocation of `bytes` at `data`
  void add(std::weak_ptr<const void> lifetime, const std::byte* data, std::size_t bytes, Value value) {
    std::erase_if(records_, [](const Record& record) { return record.lifetime.expired(); });
    records_.push_back({std::move(lifetime), reinterpret_cast<std::uintptr_t>(data), bytes, std::move(value)});
  }

  /// Location of `count` bytes at `data`; Location{} if they are in no allocation. Blocking: no; allocates nothing.
  Location find(const std::byte* data, std::size_t count) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    for (const Record& record : records_) {
      if (address >= record.begin && address - record.begin <= record.bytes &&
          count <= record.bytes - (address - record.begin) &&
          !record.lifetime.expired()) {  // else other memory may have these addresses by now
        return {record.value, address - record.begin};
      }
    }
    return {};
  }

 private:
  struct Record {
    std::weak_ptr<const void> lifetime;
    std::uintptr_t begin;
    std::size_t bytes;
    Value value;
  };

  std::vector<Record> records_;
};

}  // namespace DTRAIN_NAMESPACE::backend
