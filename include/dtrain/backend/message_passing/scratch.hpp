#pragma once
/// @file
/// Scratch: a channel's working memory, which grows on demand and is reused.

#include <cstddef>
#include <new>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Aligned to 4 KiB. Threads: as the operations of a channel, one at a time.
class Scratch {
 public:
  Scratch() noexcept = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { give_back(); }

  /// At least `bytes` of uninitialized memory. Invalidates the result of earlier calls. @throws std::bad_alloc
  std::byte* at_least(std::size_t bytes) {
    if (bytes > bytes_) {
      give_back();
      memory_ = static_cast<std::byte*>(::operator new(bytes, alignment));
      bytes_ = bytes;
    }
    return memory_;
  }

  /// Forgets the memory without freeing it, because the transport may still write to it.
  void leak() noexcept {
    memory_ = nullptr;
    bytes_ = 0;
  }

 private:
  static constexpr std::align_val_t alignment{4096};

  void give_back() noexcept {
    ::operator delete(memory_, alignment);
    leak();
  }

  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
