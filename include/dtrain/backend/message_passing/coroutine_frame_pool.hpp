#pragma once
/// @file
/// FramePool: reused memory for the coroutine frames of a channel.

#include <array>
#include <cstddef>
#include <new>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Free lists of blocks, by size: an algorithm that ran before runs without an allocation. Threads: one at a time; if
/// another thread takes over a channel's work, the hand-over orders their accesses. Lifetime: outlives the frames.
class FramePool {
 public:
  FramePool() noexcept = default;
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;
  ~FramePool() {
    for (FrameBlock* block : free_) {
      while (block != nullptr) {
        FrameBlock* const next = block->next;
        ::operator delete(block);
        block = next;
      }
    }
  }

  /// `bytes` at the alignment of new. @throws std::bad_alloc
  void* take(std::size_t bytes) {
    const std::size_t size = sizeof(FrameBlock) + bytes;
    const std::size_t list = size / step;
    if (list >= lists) {
      return new (::operator new(size)) FrameBlock{this, nullptr, list} + 1;
    }
    FrameBlock* const block = free_[list];
    if (block == nullptr) {
      return new (::operator new((list + 1) * step)) FrameBlock{this, nullptr, list} + 1;
    }
    free_[list] = block->next;
    return block + 1;
  }

  /// Returns a block to its pool.
  static void give_back(void* memory) noexcept {
    FrameBlock* const block = static_cast<FrameBlock*>(memory) - 1;
    if (block->list >= lists) {
      ::operator delete(block);
      return;
    }
    block->next = block->pool->free_[block->list];
    block->pool->free_[block->list] = block;
  }

 private:
  static constexpr std::size_t step = 128;  ///< list k has blocks of (k + 1) * step bytes
  static constexpr std::size_t lists = 64;  ///< a frame beyond 8 KiB is not pooled, which is only slower

  struct alignas(std::max_align_t) FrameBlock {
    FramePool* pool;
    FrameBlock* next;
    std::size_t list;
  };

  std::array<FrameBlock*, lists> free_{};
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
