#pragma once
/// @file
/// zero::States, zero::Gradients: stages 1 and 2 of ZeRO (Rajbhandari et al. 2020). DividedGradients of a
/// ShardedReduction: this rank's reduced gradients in stage 2.

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

/// Stages of a ShardedOptimizer: the data that is divided among the ranks.
namespace DTRAIN_NAMESPACE::zero {

/// Stage 1: the optimizer's state.
/// @ingroup sharding
struct States {
  /// Whether a step ends when each rank has updated its share. New weights are gathered in the background, the first
  /// layers' weights first. The forward pass calls DistributedDataParallel::wait_for(i) before it uses parameter i;
  /// before that call the program leaves the parameter's value alone. The program leaves all gradients alone until the
  /// next backward pass. ShardedOptimizer::wait(), the next step, a checkpoint with a parameter or the optimizer, and
  /// the optimizer's destructor wait for all parameters.
  bool overlap_forward = false;

  /// Whether ready(i) also says that the backward pass no longer uses the value of parameter i. A layer no longer uses
  /// its values once it has computed the gradient of its input. New weights are gathered, and stored in the model,
  /// during the backward pass; the step ends with all weights stored, whatever overlap_forward is. Steps whose function
  /// inspects all gradients, or whose rule measures norms, gather after the pass. Values do not move during the pass. A
  /// job that fails in such a step may leave some weights new and others old.
  bool ready_frees_value = false;

  static constexpr bool divides_gradients = false;
};

/// Stage 2: the optimizer's state and the gradients. Each rank keeps 1 / ranks of the reduced gradients. The arena
/// holds two buckets at a time. ready() waits until bucket k-2 is reduced and copies a gradient of bucket k to the
/// arena; after the call the model may use the gradient's memory again. New weights are gathered after the backward
/// pass. With ready_frees_value they are gathered during the pass, and ready() waits until the weights of bucket k-2
/// are stored.
/// - A model whose bind_gradient puts gradients into the arena is rejected. Gradients need no memory (see Parameter).
/// - The wrapper rejects steps without such an optimizer. Steps under no_sync() accumulate in the model's memory.
/// - A gradient of bucket k that is ready before bucket k-2 is launched is copied to a side buffer.
/// @ingroup sharding
struct Gradients {
  bool overlap_forward = false;    ///< the same as States::overlap_forward
  bool ready_frees_value = false;  ///< the same as States::ready_frees_value

  static constexpr bool divides_gradients = true;
};

}  // namespace DTRAIN_NAMESPACE::zero

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
