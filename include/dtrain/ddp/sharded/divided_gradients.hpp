#pragma once
/// @file
/// DividedGradients of a ShardedReduction: this rank's share of the reduced gradients in stage 2 of ZeRO. DividedParts:
/// its places.

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/sharded/shard_layout.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Places of this rank's part of each bucket, in one memory.
class DividedParts {
 public:
  DividedParts(const ShardLayout& layout, const BucketPlan& plan) {
    for (std::size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
      const BucketShard& shard = layout.buckets[bucket];
      const std::size_t element = size_bytes(plan.buckets[bucket].dtype);
      parts_.push_back({bytes_, shard.block * element});
      bytes_ += detail::padded((shard.block + shard.rest_count) * element);
    }
  }

  std::size_t bytes() const noexcept { return bytes_; }

  /// @param memory of bytes() bytes
  ShardMemory of(std::size_t bucket, std::byte* memory) const noexcept {
    std::byte* const begin = memory + parts_[bucket].begin;
    return {begin, begin + parts_[bucket].block_bytes};
  }

 private:
  struct Part {
    std::size_t begin;
    std::size_t block_bytes;
  };
  std::vector<Part> parts_;
  std::size_t bytes_ = 0;
};

/// Reduced gradients of this rank's share, in stage 2. Bucket k takes the arena's memory of bucket k-2 once bucket k-2
/// is reduced; if weights are stored during the backward pass, once its new weights are stored. ready() never waits for
/// gradients that have not arrived: if bucket k-2 is not launched, a gradient of bucket k goes to a side buffer. Side
/// buffers stay for later steps. Steady state: allocates nothing. Threads: pack() runs concurrently for different
/// parameters; before_launch() and launched() run one at a time, perhaps during pack(); all other calls run between
/// steps. `wait(event)` blocks and may throw. Lifetime: the plan outlives the object.
template <class Stream>
class DividedGradients {
 public:
  DividedGradients(const ShardLayout& layout, const BucketPlan& plan)
      : plan_(&plan),
        parts_(layout, plan),
        memory_(parts_.bytes() / sizeof(Line)),
        free_(plan.buckets.size()),
        early_(plan.bucket_of.size()) {}

  /// This rank's part of a bucket.
  ShardMemory part(std::size_t bucket) noexcept {
    return parts_.of(bucket, reinterpret_cast<std::byte*>(memory_.data()));
  }

  /// Bytes of the parts and of the side buffers.
  std::size_t bytes() const noexcept { return memory_.size() * sizeof(Line) + early_bytes_.load(); }

  void begin_step() noexcept {
    launched_.store(0, std::memory_order_relaxed);
    for (Early& early : early_) {
      early.place = nullptr;
    }
  }

  /// See StepWork::pack.
  template <class Wait>
  void pack(std::size_t parameter, const std::byte* gradient, const GradientSlot& slot, const Wait& wait) {
    if (slot.bytes == 0) return;
    const std::size_t bucket = plan_->bucket_of[parameter];
    if (launched_.load(std::memory_order_acquire) + distance > bucket) {
      wait_until_free(bucket, wait);
      write(slot.place, gradient, slot.bytes);
    } else {
      keep(early_[parameter], gradient, slot);
    }
  }

  /// Copies the bucket's gradients from side buffers to the arena. @pre all gradients of the bucket are packed
  template <class Wait>
  void before_launch(std::size_t bucket, const Wait& wait) {
    for (const std::size_t parameter : plan_->buckets[bucket].parameters) {
      const Early& early = early_[parameter];
      if (early.place != nullptr) {
        wait_until_free(bucket, wait);
        write(early.place, early.is_zero ? nullptr : early.memory.get(), early.bytes);
      }
    }
  }

  /// Called once all work that uses the bucket's place is enqueued.
  void launched(std::size_t bucket, Stream stream) {
    stream.record(free_[bucket]);
    launched_.store(bucket + 1, std::memory_order_release);
  }

 private:
  static constexpr std::size_t distance = 2;  ///< number of buckets; see with_reused_memory

  struct alignas(arena_alignment) Line {
    std::byte bytes[arena_alignment];
  };
  struct Early {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
    std::byte* place = nullptr;  ///< null: none in this step
    bool is_zero = false;
  };

  template <class Wait>
  void wait_until_free(std::size_t bucket, const Wait& wait) {
    if (bucket >= distance && !free_[bucket - distance].is_complete()) {
      wait(free_[bucket - distance]);
    }
  }

  /// Writes zeros up to the next gradient too, because another bucket has used the memory.
  static void write(std::byte* place, const std::byte* gradient, std::size_t bytes) noexcept {
    if (gradient != nullptr) {
      kernels::copy_bytes(place, gradient, bytes);
    } else {
      std::memset(place, 0, bytes);
    }
    std::memset(place + bytes, 0, detail::padded(bytes) - bytes);
  }

  void keep(Early& early, const std::byte* gradient, const GradientSlot& slot) {
    early.place = slot.place;
    early.bytes = slot.bytes;
    early.is_zero = gradient == nullptr;
    if (early.is_zero) return;
    if (!early.memory) {
      early.memory = std::make_unique<std::byte[]>(slot.bytes);
      early_bytes_ += slot.bytes;
    }
    kernels::copy_bytes(early.memory.get(), gradient, slot.bytes);
  }

  const BucketPlan* plan_;
  DividedParts parts_;
  std::vector<Line> memory_;
  std::vector<typename Stream::Event> free_;  ///< complete once the bucket's place is free
  std::vector<Early> early_;                  ///< side buffer of each parameter
  std::atomic<std::size_t> early_bytes_{0};
  std::atomic<std::size_t> launched_{0};  ///< buckets of this step
};

}  // namespace DTRAIN_NAMESPACE::ddp
