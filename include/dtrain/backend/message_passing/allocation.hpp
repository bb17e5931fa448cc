#pragma once
/// @file
/// Allocation: zeroed memory from a message-passing communicator.

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/core/process/process_limits.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Owns `bytes()` bytes, aligned to 4 KiB. Movable; may outlive any communicator.
class Allocation {
 public:
  Allocation() noexcept = default;

  /// @throws Error (out_of_memory)
  explicit Allocation(std::size_t bytes) : bytes_(bytes) {
    try {
      memory_.reset(static_cast<std::byte*>(::operator new(bytes == 0 ? 1 : bytes, alignment)));
    } catch (const std::bad_alloc&) {
      throw Error(Errc::out_of_memory,
                  "no " + std::to_string(bytes) + " bytes of memory could be had" + limit_hint(ENOMEM));
    }
    std::memset(memory_.get(), 0, bytes);
  }
  Allocation(Allocation&& other) noexcept : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Allocation& operator=(Allocation&& other) noexcept {
    memory_ = std::move(other.memory_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  std::byte* data() const noexcept { return memory_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::align_val_t alignment{4096};
  struct Free {
    void operator()(std::byte* memory) const noexcept { ::operator delete(memory, alignment); }
  };

  std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
