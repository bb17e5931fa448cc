#pragma once
/// @file
/// GradientArena of a BucketReduction: the buckets' memory, by a BucketPlan, and each gradient's place in it.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Not movable: other objects refer to the plan and the table. Threads: const members concurrently.
template <backend::Communicator Communicator>
class GradientArena {
 public:
  /// Collective, blocking: allocates. @throws Error (unsupported) for gradients that are not on `device`
  GradientArena(Communicator& communicator, std::span<const Parameter> parameters, BucketPlan plan, Device device,
                Deadline deadline)
      : plan_(std::move(plan)),
        memory_(allocate(communicator, plan_, deadline)),
        gradients_(parameters, plan_, data(), device) {}

  GradientArena(const GradientArena&) = delete;

  const BucketPlan& plan() const noexcept { return plan_; }
  const GradientTable& gradients() const noexcept { return gradients_; }
  GradientTable& gradients() noexcept { return gradients_; }

  BufferView range(std::size_t bucket) const noexcept { return range_of(plan_.buckets[bucket], data()); }
  std::size_t buckets() const noexcept { return plan_.buckets.size(); }

  /// Null only if it has 0 bytes.
  std::byte* data() const noexcept { return memory_ ? memory_->data() : nullptr; }
  std::shared_ptr<const void> memory() const noexcept { return memory_; }

  /// Calls `act(memory)`, for each type of elements, for memory as long as the least that a bucket of any plan has, as
  /// the smallest bucket, and as the largest.
  template <class Act>
  void for_extreme_ranges(const Act& act) const {
    std::optional<DType> last;
    const auto type_of = [this](std::size_t bucket) { return range(bucket).dtype; };
    const auto bytes_of = [this](std::size_t bucket) { return plan_.buckets[bucket].bytes; };
    for_extremes(buckets(), type_of, bytes_of, [&](std::size_t bucket) {
      const BufferView whole = range(bucket);
      BufferView least = whole;  // a later plan's smallest bucket may be a bias
      least.count = std::min(whole.count, arena_alignment / size_bytes(whole.dtype));
      const bool is_smallest = std::exchange(last, whole.dtype) != whole.dtype;
      if (is_smallest && least.count != whole.count) act(least);
      act(whole);
    });
  }

  /// Adopts another plan of the same bytes, to whose offsets the table's gradients have been moved.
  void set_plan(BucketPlan plan) { plan_ = std::move(plan); }

  /// Collective, blocking: the same buckets in less memory, see with_reused_memory.
  /// @param unbinds see GradientTable::unbind @throws Error (unsupported) for bound gradients without it
  void reuse_memory(Communicator& communicator, Deadline deadline, bool unbinds) {
    if (plan_.reuses_memory) return;
    if (unbinds) gradients_.unbind();
    gradients_.require_unbound();
    BucketPlan next = with_reused_memory(plan_);
    memory_ = allocate(communicator, next, deadline);
    gradients_.move_to(data(), next);
    set_plan(std::move(next));
  }

 private:
  using Allocation = typename Communicator::Allocation;

  static std::shared_ptr<Allocation> allocate(Communicator& communicator, const BucketPlan& plan, Deadline deadline) {
    if (plan.arena_bytes == 0) {
      return nullptr;
    }
    return std::make_shared<Allocation>(communicator.allocate_blocking(plan.arena_bytes, deadline));
  }

  BucketPlan plan_;
  std::shared_ptr<Allocation> memory_;
  GradientTable gradients_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
