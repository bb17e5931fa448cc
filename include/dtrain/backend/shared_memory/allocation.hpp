#pragma once
/// @file
/// shared_memory::Allocation: this rank's memory in an allocation of a channel.

#include <cstddef>
#include <memory>
#include <utility>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

class Segment;

/// An owner, which may outlive the communicator. In-place collectives on this memory copy nothing.
class Allocation {
 public:
  Allocation() noexcept = default;
  Allocation(std::shared_ptr<Segment> segment, std::byte* data, std::size_t bytes) noexcept
      : segment_(std::move(segment)), data_(data), bytes_(bytes) {}
  Allocation(Allocation&& other) noexcept
      : segment_(std::move(other.segment_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Allocation& operator=(Allocation&& other) noexcept {
    segment_ = std::move(other.segment_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() = default;

  /// This rank's memory, aligned to a page at least.
  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<Segment> segment_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
