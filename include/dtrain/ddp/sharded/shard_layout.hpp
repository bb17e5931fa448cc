#pragma once
/// @file
/// ShardLayout: the elements of each bucket that a rank of a sharded optimizer updates. Pure.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/bucket_plan.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A part of one parameter, in elements.
struct ShardPiece {
  std::size_t parameter = 0;
  std::size_t offset = 0;    ///< first element in the parameter
  std::size_t in_part = 0;   ///< offset in this rank's block, or in the rest
  std::size_t in_state = 0;  ///< offset in this rank's state arrays
  std::size_t count = 0;
};

/// Elements of a bucket that one rank updates. The first `block * ranks` elements are equal blocks, one for each rank.
/// All ranks reduce and update the rest, which has less than 16 elements for each rank.
struct BucketShard {
  std::size_t block = 0;        ///< elements; a multiple of 16, which are a cache line of f32
  std::size_t own_begin = 0;    ///< offset of this rank's block
  std::size_t rest_begin = 0;   ///< = block * ranks
  std::size_t rest_count = 0;   ///< padding included
  std::vector<ShardPiece> own;  ///< pieces of the block, without the padding between parameters
  std::vector<ShardPiece> rest;
};

/// Memory of this rank's part of a bucket's reduced gradients.
struct ShardMemory {
  std::byte* block;
  std::byte* rest;
};

struct ShardLayout {
  std::vector<BucketShard> buckets;  ///< shards in the plan's order
  std::size_t state_elements = 0;    ///< elements of each state array on this rank
};

/// Computes the layout of `rank`. Pure: every rank can compute it for every other rank.
ShardLayout shard_layout(const BucketPlan& plan, std::span<const GradientSize> sizes, int rank, int ranks);

#if DTRAIN_DEFINITIONS

namespace detail {

/// The parts of parameters in elements [begin, end) of a bucket.
inline std::vector<ShardPiece> pieces_in(const PlannedBucket& bucket, const BucketPlan& plan,
                                         std::span<const GradientSize> sizes, std::size_t begin, std::size_t end,
                                         std::size_t& state_elements) {
  std::vector<ShardPiece> pieces;
  const std::size_t element = size_bytes(bucket.dtype);
  for (const std::size_t parameter : bucket.parameters) {
    const std::size_t first = (plan.offset_of[parameter] - bucket.offset) / element;
    const std::size_t from = std::max(begin, first);
    const std::size_t to = std::min(end, first + sizes[parameter].bytes / element);
    if (from < to) {
      pieces.push_back({parameter, from - first, from - begin, state_elements, to - from});
      state_elements += to - from;
    }
  }
  return pieces;
}

}  // namespace detail

DTRAIN_DEFINED ShardLayout shard_layout(const BucketPlan& plan, std::span<const GradientSize> sizes, int rank,
                                        int ranks) {
  constexpr std::size_t multiple = 16;
  ShardLayout layout;
  for (const PlannedBucket& bucket : plan.buckets) {
    const std::size_t count = bucket.bytes / size_bytes(bucket.dtype);
    BucketShard shard;
    shard.block = count / static_cast<std::size_t>(ranks) / multiple * multiple;
    shard.own_begin = shard.block * static_cast<std::size_t>(rank);
    shard.rest_begin = shard.block * static_cast<std::size_t>(ranks);
    shard.rest_count = count - shard.rest_begin;
    shard.own =
        detail::pieces_in(bucket, plan, sizes, shard.own_begin, shard.own_begin + shard.block, layout.state_elements);
    shard.rest = detail::pieces_in(bucket, plan, sizes, shard.rest_begin, count, layout.state_elements);
    layout.buckets.push_back(std::move(shard));
  }
  return layout;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
