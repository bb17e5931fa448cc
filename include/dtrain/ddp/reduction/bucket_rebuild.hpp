#pragma once
/// @file
/// BucketRebuild of a Reducer: a new bucket plan after a step, by rank 0's ready order or a BucketPlanner.
/// Rearrangement: moves gradients in place.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/store_ref.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/control_groups.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/planning/bucket_planner.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/group/group_handle.hpp"
#include "dtrain/rendezvous/client/value_chunks.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A block of memory, directly after the block before it.
struct Block {
  std::size_t bytes = 0;
  std::size_t target = 0;  ///< wanted begin; only the order of the targets is used
};

namespace detail {

/// A merge sort that rotates instead of copying to a second array. Each byte of n blocks is moved about log(n) times if
/// they are in disorder, and never if they are in order.
template <class Copy>
class Rearrangement {
 public:
  Rearrangement(std::span<Block> blocks, std::span<std::byte> scratch, Copy copy)
      : blocks_(blocks), scratch_(scratch), copy_(std::move(copy)) {}

  void run(std::byte* base) { sort(0, blocks_.size(), base); }

 private:
  std::size_t bytes_of(std::size_t first, std::size_t last) const noexcept {
    std::size_t bytes = 0;
    for (; first < last; ++first) {
      bytes += blocks_[first].bytes;
    }
    return bytes;
  }

  /// Sorts blocks [first, last), which begin at `at`.
  void sort(std::size_t first, std::size_t last, std::byte* at) {
    if (last - first > 1) {
      const std::size_t middle = first + (last - first) / 2;
      sort(first, middle, at);
      sort(middle, last, at + bytes_of(first, middle));
      merge(first, middle, last, at);
    }
  }

  /// Merges [first, middle) and [middle, last), each in order: splits the longer run in the middle and the other at the
  /// same target, rotates the inner parts, and merges both halves.
  void merge(std::size_t first, std::size_t middle, std::size_t last, std::byte* at) {
    if (first == middle || middle == last || blocks_[middle - 1].target < blocks_[middle].target) {
      return;
    }
    const auto before = [](const Block& one, const Block& other) { return one.target < other.target; };
    const auto begin = blocks_.begin();
    const auto iterator = [begin](std::size_t index) { return begin + static_cast<std::ptrdiff_t>(index); };
    std::size_t left = first + (middle - first) / 2;
    std::size_t right = middle + (last - middle) / 2;
    if (middle - first >= last - middle) {
      right =
          static_cast<std::size_t>(std::lower_bound(iterator(middle), iterator(last), blocks_[left], before) - begin);
    } else {
      left =
          static_cast<std::size_t>(std::upper_bound(iterator(first), iterator(middle), blocks_[right], before) - begin);
    }
    rotate(at + bytes_of(first, left), bytes_of(left, middle), bytes_of(middle, right));
    std::rotate(iterator(left), iterator(middle), iterator(right));
    const std::size_t boundary = left + (right - middle);
    merge(first, left, boundary, at);
    merge(boundary, right, last, at + bytes_of(first, boundary));
  }

  /// Swaps the `left` bytes at `at` with the `right` bytes after them. Each pass exchanges the shorter side with
  /// equally many bytes of the longer one, and so puts it in its final position.
  /// Example, left 2 and right 4: ab1234 becomes 3412ab, and ab is final. Then left 2 and right 2: 1234ab.
  void rotate(std::byte* at, std::size_t left, std::size_t right) {
    while (left != 0 && right != 0) {
      const std::size_t shorter = std::min(left, right);
      exchange(at, left <= right ? at + right : at + left, shorter);
      if (left <= right) {
        right -= shorter;
      } else {
        at += shorter;
        left -= shorter;
      }
    }
  }

  void exchange(std::byte* one, std::byte* other, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t chunk = std::min(bytes - done, scratch_.size());
      copy_(scratch_.data(), one + done, chunk);
      copy_(one + done, other + done, chunk);
      copy_(other + done, scratch_.data(), chunk);
      done += chunk;
    }
  }

  std::span<Block> blocks_;
  std::span<std::byte> scratch_;
  Copy copy_;
};

}  // namespace detail

/// Sorts `blocks`, which follow each other from `base` on, by their targets.
/// @param scratch buffer for exchanging two ranges; any size but 0
/// @param copy `copy(to, from, bytes)` copies between ranges that do not overlap, blocking
template <class Copy>
void rearrange(std::byte* base, std::span<Block> blocks, std::span<std::byte> scratch, Copy copy) {
  detail::Rearrangement<Copy>(blocks, scratch, std::move(copy)).run(base);
}

/// Callbacks with which a reducer rebuilds its buckets. Without `agreed_order` and `planner` it keeps its first plan.
struct BucketRebuild {
  /// Collective, blocking: returns rank 0's order; `order` is this rank's.
  std::function<std::vector<std::size_t>(const std::vector<std::size_t>& order)> agreed_order;
  /// Calls the model's bind_gradient: gradient `parameter` is at `view` now. Required if a gradient is bound.
  std::function<void(std::size_t parameter, const TensorView& view)> bind;
  /// Rank 0 alone: called with its order when its last gradient is ready; may be empty. Blocking: no. Other ranks wait
  /// in `agreed_order` for this publication. The publication must not wait for this rank's finish(), which may wait
  /// for other ranks in another channel.
  std::function<void(const std::vector<std::size_t>& order)> publish_order{};
  int ranks_on_host = 1;  ///< ranks that move their gradients at the same time
  std::shared_ptr<BucketPlanner> planner{};

  bool is_planning() const noexcept { return planner && !planner->is_settled(); }
};

/// Collective, blocking as BucketPlanner::after_step: the plan after the step that `meter` has measured.
/// @param order in which the same gradients are planned from now on; empty: the present order
/// @returns nullopt if `plan` stays
std::optional<BucketPlan> next_plan(const BucketRebuild& rebuild, const BucketPlan& plan,
                                    std::span<const GradientSize> sizes, std::span<const std::size_t> order,
                                    const BucketCaps& caps, StepMeter& meter);

/// Next plan, for which `communicator` uses the planner's variant from the next step on, also if the plan stays.
template <class Communicator>
std::optional<BucketPlan> next_plan([[maybe_unused]] Communicator& communicator, const BucketRebuild& rebuild,
                                    const BucketPlan& plan, std::span<const GradientSize> sizes,
                                    std::span<const std::size_t> order, const BucketCaps& caps, StepMeter& meter) {
  std::optional<BucketPlan> next = next_plan(rebuild, plan, sizes, order, caps, meter);
  if constexpr (backend::HasVariants<Communicator>) {
    if (rebuild.planner) communicator.use_variant(rebuild.planner->variant());
  }
  return next;
}

/// Host memory for moving gradients: as large as the arena if possible, else smaller.
struct RelocationBuffer {
  /// A buffer that is smaller than the arena need not be larger than this to be fast.
  static constexpr std::size_t useful_bytes = std::size_t{16} << 20;

  /// @param sharers ranks of this host that allocate equal buffers at the same time
  /// @throws std::bad_alloc if not even one page can be allocated
  RelocationBuffer(std::size_t wanted, int sharers);
  bool try_allocate() noexcept {
    memory.reset(new (std::nothrow) std::byte[bytes]);
    return memory != nullptr;
  }

  std::unique_ptr<std::byte[]> memory;
  std::size_t bytes;
};

/// The gradients' blocks in their present order in the arena, with their offsets in `plan` as targets.
std::vector<Block> blocks_of(const GradientTable& gradients, const BucketPlan& plan, const std::byte* arena);

/// Enqueues or runs copies that move the contents of bound gradients to their offsets in `plan`; the rest of the arena
/// becomes zero. If `scratch` is smaller than the arena, gradients move within the arena, which takes more copies.
/// @param copier clears, in the order of the copies
/// @param copy `copy(to, from, bytes)`
template <class Copier, class Copy>
void move_contents(const GradientTable& gradients, const BucketPlan& plan, std::byte* arena, const Copier& copier,
                   std::span<std::byte> scratch, Copy copy) {
  const bool holds_all = scratch.size() >= plan.arena_bytes;
  if (holds_all) {
    copy(scratch.data(), arena, plan.arena_bytes);
    copier.clear(arena, plan.arena_bytes);
  } else {
    std::vector<Block> blocks = blocks_of(gradients, plan, arena);
    rearrange(arena, std::span(blocks.data(), blocks.size()), scratch, copy);
  }
  for (std::size_t parameter = 0; parameter < gradients.size(); ++parameter) {
    const GradientSlot& slot = gradients[parameter];
    std::byte* const place = arena + plan.offset_of[parameter];
    if (slot.bytes != 0 && slot.is_bound() && holds_all) {
      copy(place, scratch.data() + (slot.place - arena), slot.bytes);
    } else if (!slot.is_bound() && !holds_all) {
      copier.clear(place, slot.bytes);
    }
  }
}

/// Enqueues move_contents through memory of the device, 16 MiB at most, so that the copies are as fast as the device.
/// @returns false if nothing was enqueued, because the contents are in host memory or the device has no memory left
template <class Copier>
bool move_contents_on_device([[maybe_unused]] const GradientTable& gradients, [[maybe_unused]] const BucketPlan& plan,
                             [[maybe_unused]] std::byte* arena, [[maybe_unused]] const Copier& copier) {
  if constexpr (Copier::copies_on_stream) {
    const auto scratch = copier.try_allocate(std::min(plan.arena_bytes, RelocationBuffer::useful_bytes));
    if (scratch.data() == nullptr) {
      return false;
    }
    move_contents(
        gradients, plan, arena, copier, {scratch.data(), scratch.bytes()},
        [&](std::byte* to, const std::byte* from, std::size_t bytes) { copier.enqueue_copy(to, from, bytes); });
    return true;
  } else {
    return false;
  }
}

/// Blocking: moves all gradients to their offsets in `plan` and calls `bind` for bound gradients that moved.
/// - Bound gradients keep their content; the rest of the arena is zero afterwards.
/// - If nothing is bound, nothing is copied. Else the contents are copied through memory of the device, or through host
/// memory if the device has none left.
/// @param copier copies and clears; waits with `wait`
/// @param sharers ranks of this host that move gradients at the same time
template <class Copier, class Wait>
void move_gradients(GradientTable& gradients, const BucketPlan& plan, std::byte* arena, Copier& copier, Wait&& wait,
                    const std::function<void(std::size_t, const TensorView&)>& bind, int sharers) {
  if (!gradients.first_bound()) {  // only bound gradients have their content in the arena between steps
    copier.clear(arena, plan.arena_bytes);
  } else if (!move_contents_on_device(gradients, plan, arena, copier)) {
    const RelocationBuffer scratch(plan.arena_bytes, sharers);
    move_contents(gradients, plan, arena, copier, {scratch.memory.get(), scratch.bytes},
                  [&](std::byte* to, const std::byte* from, std::size_t bytes) { copier.copy(to, from, bytes, wait); });
  }
  if constexpr (Copier::copies_on_stream) {
    copier.synchronize(
        wait);  // includes the zeros: a graph that replays the next step is not ordered after this stream
  }
  for (std::size_t parameter = 0; parameter < gradients.size(); ++parameter) {
    const GradientSlot before = gradients[parameter];
    const TensorView view = gradients.move(parameter, plan);
    if (before.is_bound() && before.bytes != 0 && gradients[parameter].place != before.place) {
      bind(parameter, view);
    }
  }
}

/// Blocking: until rank 0 has published its order of `count` parameters. Each of the other ranks reads it once.
/// @throws the job's first cause; Error (timeout)
std::vector<std::size_t> read_order_blocking(const group::GroupHandle& group, const std::string& prefix,
                                             std::size_t count, Deadline deadline);

/// Sets the callbacks of `rebuild`, so that all ranks of the group use rank 0's order. @param prefix used once
void set_up_order_broadcast(BucketRebuild& rebuild, const std::shared_ptr<const group::GroupHandle>& group,
                            const std::string& prefix);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::optional<BucketPlan> next_plan(const BucketRebuild& rebuild, const BucketPlan& plan,
                                                   std::span<const GradientSize> sizes,
                                                   std::span<const std::size_t> order, const BucketCaps& caps,
                                                   StepMeter& meter) {
  std::optional<BucketPlan> next;
  if (!order.empty()) next = plan_buckets(sizes, order, caps);
  if (rebuild.is_planning()) {
    std::optional<BucketPlan> planned =
        rebuild.planner->after_step(order, {meter.step(), meter.last_duration(), meter.recorder()});
    if (planned) next = std::move(planned);
    meter.record_every_ready(rebuild.planner->wants_ready_times());
  }
  if (next && next->arena_bytes != plan.arena_bytes) {
    throw_error(Errc::invalid_argument, "a second bucket plan needs another arena; it is not of the same gradients");
  }
  const bool is_same = next && next->offset_of == plan.offset_of && next->bucket_of == plan.bucket_of;
  return is_same ? std::nullopt : std::move(next);
}

DTRAIN_DEFINED RelocationBuffer::RelocationBuffer(std::size_t wanted, int sharers) : bytes(wanted) {
  constexpr std::size_t min_bytes = 4096;
  const std::uint64_t available = available_memory_bytes() / (2 * static_cast<unsigned>(sharers));
  if (bytes > available || !try_allocate()) {
    bytes = std::min(bytes, useful_bytes);
  }
  while (!memory && bytes > min_bytes && (bytes > available || !try_allocate())) {
    bytes /= 2;
  }
  if (!memory) {
    memory.reset(new std::byte[bytes]);
  }
}

DTRAIN_DEFINED std::vector<Block> blocks_of(const GradientTable& gradients, const BucketPlan& plan,
                                            const std::byte* arena) {
  std::vector<std::pair<std::size_t, Block>> placed;
  for (std::size_t parameter = 0; parameter < gradients.size(); ++parameter) {
    if (const GradientSlot& slot = gradients[parameter]; slot.bytes != 0) {
      const auto offset = static_cast<std::size_t>(slot.place - arena);
      placed.push_back({offset, {detail::padded(slot.bytes), plan.offset_of[parameter]}});
    }
  }
  std::sort(placed.begin(), placed.end(), [](const auto& one, const auto& other) { return one.first < other.first; });
  std::vector<Block> blocks;
  for (const auto& [offset, block] : placed) {
    blocks.push_back(block);
  }
  return blocks;
}

namespace detail {

inline constexpr std::size_t order_entry_bytes = 4;

/// @throws Error (protocol) for bytes that are not `count` indices.
inline std::vector<std::size_t> order_in(std::string_view bytes, std::size_t count) {
  if (bytes.size() != count * order_entry_bytes) {
    throw_error(Errc::protocol, "rank 0's order of parameters has {} bytes, not {}; do both run the same program?",
                {bytes.size(), count * order_entry_bytes});
  }
  Serializer reader(bytes);
  std::vector<std::size_t> order(count);
  for (std::size_t& parameter : order) {
    std::uint32_t index = 0;
    reader.number(index);
    parameter = index;
  }
  return order;
}

}  // namespace detail

DTRAIN_DEFINED std::vector<std::size_t> read_order_blocking(const group::GroupHandle& group, const std::string& prefix,
                                                            std::size_t count, Deadline deadline) {
  const backend::StoreRef store = group.store_ref().with_purpose("taking the order of the gradients from rank 0");
  std::string bytes;
  try {
    bytes = rendezvous::join_value_chunks(
        prefix + "order", count * detail::order_entry_bytes,
        [&](const std::string& name) { return store.take_blocking(name, group.members().world_size - 1, deadline); });
  } catch (const Error&) {
    group.throw_cause_or_rethrow();
  }
  return detail::order_in(bytes, count);
}

DTRAIN_DEFINED void set_up_order_broadcast(BucketRebuild& rebuild,
                                           const std::shared_ptr<const group::GroupHandle>& group,
                                           const std::string& prefix) {
  const auto wait_until_published = std::make_shared<group::WaitUntilSet>();  // empty until rank 0 publishes
  if (group->members().rank == 0 && group->members().world_size > 1) {
    rebuild.publish_order = [group, prefix, wait_until_published](const std::vector<std::size_t>& order) {
      Serializer writer;
      for (const std::size_t parameter : order) {
        auto index = static_cast<std::uint32_t>(parameter);
        writer.number(index);
      }
      *wait_until_published = group->set_in_background(rendezvous::value_chunks(prefix + "order", writer.characters()));
    };
  }
  rebuild.agreed_order = [group, prefix, wait_until_published](const std::vector<std::size_t>& order) {
    const Deadline deadline = Deadline::after(group->timeout());
    if (group->members().rank != 0) return read_order_blocking(*group, prefix, order.size(), deadline);
    if (*wait_until_published) (*wait_until_published)(deadline);
    return order;
  };
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
