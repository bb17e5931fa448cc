#pragma once
/// @file
/// BucketPlan: which gradients are reduced together, in which order, at which offsets. plan_buckets(): the same plan on
/// every rank. Pure.

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Size, type and device of one gradient.
struct GradientSize {
  std::size_t bytes = 0;
  DType dtype = DType::f32;
  Device device{};
};

/// Size limits of buckets. Zeros give every parameter its own bucket.
struct BucketCaps {
  /// Cap of the first bucket, and of the smallest buckets at the end.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  /// Cap of any bucket of more than one parameter.
  std::size_t bucket_bytes = std::size_t{25} << 20;

  friend bool operator==(const BucketCaps&, const BucketCaps&) = default;
};

/// Gradients that one collective reduces together.
struct PlannedBucket {
  std::vector<std::size_t> parameters;  ///< the bucket's parameters in ready order
  DType dtype = DType::f32;
  Device device{};
  std::size_t offset = 0;         ///< place of its range in the arena
  std::size_t bytes = 0;          ///< bytes of its range, padding included
  std::size_t payload_bytes = 0;  ///< bytes of its gradients alone
};

/// Every parameter lies in exactly one bucket. Buckets follow each other in the arena without a gap, in launch order;
/// or they reuse its memory.
struct BucketPlan {
  std::vector<PlannedBucket> buckets;
  std::vector<std::size_t> offset_of;  ///< parameter -> offset in the arena, a multiple of arena_alignment
  std::vector<std::size_t> bucket_of;  ///< parameter -> index into buckets
  std::size_t arena_bytes = 0;
  bool reuses_memory = false;  ///< see with_reused_memory
};

/// A cache line: no two gradients share one, and vector loads are aligned.
inline constexpr std::size_t arena_alignment = 64;

/// Backward passes produce the last parameter's gradient first.
std::vector<std::size_t> reverse_order(std::size_t count);

/// The cap of a bucket opened when `remaining` of `total` bytes are not yet placed: at most bucket_bytes, at least the
/// first bucket's cap, and between these the smaller of
/// - a sixteenth of all bytes: while a bucket fills, none of it is in flight. If communication takes as long as the
/// backward pass, the fill time is added to the step;
/// - half of the remaining bytes, so that the last buckets halve. The last one is reduced after the backward pass,
/// which hides none of it; so it stays as small as the first.
/// Buckets of 400 MiB: 1, 25, ..., 25, 24, 12, 6, 3, 2, 1, 1; of 100 MiB: 1, 6, ..., 6, 4, 2, 1, 1, 1.
/// dtrain/ddp/planning/plan_search.hpp has the arithmetic.
constexpr std::size_t tapered_cap(std::size_t remaining, std::size_t total, const BucketCaps& caps) noexcept {
  return std::min(caps.bucket_bytes, std::max(caps.first_bucket_bytes, std::min(remaining / 2, total / 16)));
}

namespace detail {

constexpr std::size_t padded(std::size_t bytes) noexcept {
  return (bytes + arena_alignment - 1) / arena_alignment * arena_alignment;
}

}  // namespace detail

/// Pure and deterministic: the same arguments give the same plan on every rank.
/// - Parameters fill buckets in `ready_order`, each the open bucket of its dtype and device: alternating kinds do not
/// cut buckets short.
/// - Buckets are ordered by the ready position of their last parameter.
/// - A parameter larger than the cap has its own bucket; one of 0 bytes takes no space.
/// @throws Error (invalid_argument) if `ready_order` is not a permutation, (limit) beyond 2^60 bytes.
BucketPlan plan_buckets(std::span<const GradientSize> sizes, std::span<const std::size_t> ready_order,
                        BucketCaps caps = {});

/// Plans for the reverse order of the parameters.
BucketPlan plan_buckets(std::span<const GradientSize> sizes, BucketCaps caps = {});

/// The buckets of `plan` in an arena that holds any two successive buckets: buckets 0, 2, 4, ... lie at its begin, all
/// others at its end. Before bucket k gets a gradient, bucket k-2 has left the memory.
BucketPlan with_reused_memory(BucketPlan plan);

/// The elements of `planned` in the arena at `arena`, with padding: zeros, which every reduction leaves zero.
inline BufferView range_of(const PlannedBucket& planned, std::byte* arena) noexcept {
  std::byte* const data = planned.bytes == 0 ? nullptr : arena + planned.offset;
  return {data, planned.bytes / size_bytes(planned.dtype), planned.dtype, planned.device};
}

/// The number of gradients of each bucket.
std::vector<std::size_t> parameter_counts(const BucketPlan& plan);

/// For each value of `type_of(i)`, i < count: calls `act(i)` for one of the smallest of the sizes `size_of(i)` above 0,
/// and for one of the largest, if that is another.
template <class TypeOf, class SizeOf, class Act>
void for_extremes(std::size_t count, const TypeOf& type_of, const SizeOf& size_of, const Act& act) {
  std::vector<bool> is_done(count);
  for (std::size_t first = 0; first < count; ++first) {
    std::size_t smallest = count;
    std::size_t largest = count;
    for (std::size_t i = first; i < count; ++i) {
      if (is_done[i] || type_of(i) != type_of(first)) continue;
      is_done[i] = true;
      if (size_of(i) == 0) continue;
      if (smallest == count || size_of(i) < size_of(smallest)) smallest = i;
      if (largest == count || size_of(i) > size_of(largest)) largest = i;
    }
    if (smallest != count) act(smallest);
    if (largest != smallest) act(largest);
  }
}

/// Bytes of all gradients, without padding.
inline std::size_t payload_bytes(const BucketPlan& plan) noexcept {
  std::size_t bytes = 0;
  for (const PlannedBucket& bucket : plan.buckets) {
    bytes += bucket.payload_bytes;
  }
  return bytes;
}

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::vector<std::size_t> reverse_order(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

namespace detail {

/// @throws Error (invalid_argument) unless `order` names each of `count` parameters once.
inline void check_order(std::span<const std::size_t> order, std::size_t count) {
  std::vector<bool> seen(count, false);
  bool whole = order.size() == count;
  for (const std::size_t parameter : order) {
    whole = whole && parameter < count && !seen[parameter];
    if (!whole) break;
    seen[parameter] = true;
  }
  if (!whole) {
    throw_error(
        Errc::invalid_argument,
        "a ready order of {} entries does not name each of {} parameters once; give a permutation of their indices",
        {order.size(), count});
  }
}

/// Sum of all padded gradients. @throws Error (limit) beyond 2^60 bytes.
inline std::size_t arena_bytes_of(std::span<const GradientSize> sizes) {
  constexpr std::size_t most = std::size_t{1} << 60;
  std::size_t total = 0;
  for (const GradientSize& size : sizes) {
    if (size.bytes > most || (total += padded(size.bytes)) > most) {
      throw_error(Errc::limit, "the gradients of the model need more than 2^60 bytes; check the parameters' shapes");
    }
  }
  return total;
}

/// A bucket that still takes parameters. There is one for each kind (dtype and device) so far.
struct OpenBucket {
  PlannedBucket bucket;
  std::size_t cap = 0;
  std::size_t last_position = 0;  ///< place in the ready order of its last parameter, which completes the bucket
};

}  // namespace detail

DTRAIN_DEFINED BucketPlan plan_buckets(std::span<const GradientSize> sizes, std::span<const std::size_t> ready_order,
                                       BucketCaps caps) {
  detail::check_order(ready_order, sizes.size());
  caps.first_bucket_bytes = std::min(caps.first_bucket_bytes, caps.bucket_bytes);
  std::size_t remaining = detail::arena_bytes_of(sizes);

  BucketPlan plan{{}, std::vector<std::size_t>(sizes.size()), std::vector<std::size_t>(sizes.size()), remaining};
  std::vector<detail::OpenBucket> open;
  std::vector<detail::OpenBucket> done;
  for (std::size_t position = 0; position < ready_order.size(); ++position) {
    const std::size_t parameter = ready_order[position];
    const GradientSize& size = sizes[parameter];
    const std::size_t bytes = detail::padded(size.bytes);
    auto place = std::find_if(open.begin(), open.end(), [&size](const detail::OpenBucket& candidate) {
      return candidate.bucket.dtype == size.dtype && candidate.bucket.device == size.device;
    });
    if (place != open.end() && place->bucket.bytes + bytes > place->cap) {
      done.push_back(std::move(*place));
      open.erase(place);
      place = open.end();
    }
    if (place == open.end()) {
      const std::size_t cap = done.empty() ? caps.first_bucket_bytes : tapered_cap(remaining, plan.arena_bytes, caps);
      open.push_back({{{}, size.dtype, size.device, 0, 0, 0}, cap, position});
      place = std::prev(open.end());
    }
    place->bucket.parameters.push_back(parameter);
    place->bucket.bytes += bytes;
    place->bucket.payload_bytes += size.bytes;
    place->last_position = position;
    remaining -= bytes;
  }
  std::move(open.begin(), open.end(), std::back_inserter(done));
  std::sort(done.begin(), done.end(),
            [](const detail::OpenBucket& a, const detail::OpenBucket& b) { return a.last_position < b.last_position; });

  std::size_t offset = 0;
  for (detail::OpenBucket& next : done) {
    next.bucket.offset = offset;
    for (const std::size_t parameter : next.bucket.parameters) {
      plan.offset_of[parameter] = offset;
      plan.bucket_of[parameter] = plan.buckets.size();
      offset += detail::padded(sizes[parameter].bytes);
    }
    plan.buckets.push_back(std::move(next.bucket));
  }
  return plan;
}

DTRAIN_DEFINED BucketPlan plan_buckets(std::span<const GradientSize> sizes, BucketCaps caps) {
  return plan_buckets(sizes, reverse_order(sizes.size()), caps);
}

DTRAIN_DEFINED BucketPlan with_reused_memory(BucketPlan plan) {
  plan.arena_bytes = 0;
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    const std::size_t next = i + 1 < plan.buckets.size() ? plan.buckets[i + 1].bytes : 0;
    plan.arena_bytes = std::max(plan.arena_bytes, plan.buckets[i].bytes + next);
  }
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    PlannedBucket& bucket = plan.buckets[i];
    const std::size_t offset = i % 2 == 0 ? 0 : plan.arena_bytes - bucket.bytes;
    for (const std::size_t parameter : bucket.parameters) {
      plan.offset_of[parameter] += offset - bucket.offset;  // unsigned, and so right for a smaller offset too
    }
    bucket.offset = offset;
  }
  plan.reuses_memory = true;
  return plan;
}

DTRAIN_DEFINED std::vector<std::size_t> parameter_counts(const BucketPlan& plan) {
  std::vector<std::size_t> counts;
  counts.reserve(plan.buckets.size());
  for (const PlannedBucket& bucket : plan.buckets) {
    counts.push_back(bucket.parameters.size());
  }
  return counts;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::BucketCaps;
using ddp::BucketPlan;
}  // namespace DTRAIN_NAMESPACE
