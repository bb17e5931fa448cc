#pragma once
/// @file
/// Memory for the frames of a channel's coroutines, used again and again.

#include <array>
#include <cstddef>
#include <new>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Blocks of a few sizes, each kept in a list once it is free: an algorithm that ran before runs without an allocation.
/// Threads: one at a time; where one hands a channel's work to another, the hand-over orders them.
/// Lifetime: outlives the frames.
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

  /// Gives a block back to the pool that it is from.
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
  static constexpr std::size_t step = 128;  ///< bytes between one list's blocks and the next's
  static constexpr std::size_t lists = 64;  ///< a frame beyond 8 KiB would be a mistake, and only slower

  struct alignas(std::max_align_t) FrameBlock {
    FramePool* pool;
    FrameBlock* next;
    std::size_t list;
  };

  std::array<FrameBlock*, lists> free_{};
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
