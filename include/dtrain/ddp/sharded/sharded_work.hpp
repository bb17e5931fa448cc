#pragma once
/// @file
/// ShardedWork: common part of a sharded optimizer's reductions, on host and device.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/ddp/reduction/gradient_copier.hpp"
#include "dtrain/ddp/sharded/shard_layout.hpp"
#include "dtrain/ddp/sharded/sharded_options.hpp"
#include "dtrain/ddp/sharded/shards.hpp"
#include "dtrain/ddp/step_options.hpp"
#include "dtrain/ddp/step_work.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Lifetime: as StepWork.
template <class C>
class ShardedWork : public StepWork<C> {
 public:
  using Stream = typename C::Stream;
  using Norms = BucketNormsFor<Stream>;

  /// Lifetime: `norms`, of the wrapper, outlive the steps.
  ShardedWork(std::size_t buckets, const ShardedOptions& options, Norms& norms)
      : options_(options), norms_(norms), ranges_(buckets) {
    gathers_.reserve(buckets);
  }

  void require_usable(const BucketPlan& plan, const GradientTable&, const char* caller) const final {
    if (!shards().is_for(plan)) {
      refuse_work(caller,
                  "a ShardedOptimizer, but that of another DistributedDataParallel; give the one that was constructed "
                  "from this");
    }
    if (plan.reuses_memory != options_.divides_gradients()) {
      refuse_work(caller,
                  "a ShardedOptimizer that needs the memory of all gradients, but another one, of stage 2, "
                  "has left none for them; give that");
    }
  }

 protected:
  ~ShardedWork() = default;

  virtual const Shards& shards() const noexcept = 0;

  static BufferView like(const BufferView& range, std::byte* memory, std::size_t count) noexcept {
    return {memory, count, range.dtype, range.device};
  }
  static BufferView part(const BufferView& range, std::size_t begin, std::size_t count) noexcept {
    return like(range, range.data + begin * size_bytes(range.dtype), count);
  }

  /// Memory of this rank's part of the bucket, in the bucket's range.
  ShardMemory place_of(std::size_t bucket) const noexcept {
    const BufferView& range = ranges_[bucket];
    const BucketShard& shard = shards().shard(bucket);
    return {part(range, shard.own_begin, 0).data, part(range, shard.rest_begin, 0).data};
  }

  /// Enqueues the reduction of this rank's part of the bucket, to `own`.
  void reduce(std::size_t bucket, const ShardMemory& own, ReduceOp op, C& channel, Stream stream) {
    const BufferView& range = ranges_[bucket];
    const BucketShard& shard = shards().shard(bucket);
    if (shard.block != 0) {
      const BufferView whole = part(range, 0, shard.rest_begin);
      channel.enqueue(backend::ReduceScatter{whole, like(range, own.block, shard.block), op}, stream);
    }
    if (shard.rest_count != 0) {
      const BufferView rest = part(range, shard.rest_begin, shard.rest_count);
      channel.enqueue(backend::AllReduce{rest, like(range, own.rest, shard.rest_count), op}, stream);
    }
  }

  /// Enqueues the gathering of the blocks in the bucket's range.
  void gather(std::size_t bucket, C& channel, Stream stream) {
    if (shards().shard(bucket).block != 0) channel.enqueue(gather_of(bucket), stream);
  }

  /// The same for all buckets, together if the communicator can.
  void gather_all(C& channel, Stream stream) {
    if constexpr (backend::CanGroupAllGathers<C>) {
      gathers_.clear();
      for (std::size_t bucket = 0; bucket < ranges_.size(); ++bucket) {
        if (shards().shard(bucket).block != 0) gathers_.push_back(gather_of(bucket));
      }
      if (!gathers_.empty()) channel.enqueue(std::span<const backend::AllGather>(gathers_), stream);
    } else {
      for (std::size_t bucket = 0; bucket < ranges_.size(); ++bucket)
        gather(bucket, channel, stream);
    }
  }

  const ShardedOptions options_;
  Norms& norms_;                       ///< get the norm of a step that measures
  std::vector<BufferView> ranges_;     ///< ranges of each bucket that is launched
  const StepOptions* step_ = nullptr;  ///< options of the present step

 private:
  backend::AllGather gather_of(std::size_t bucket) const noexcept {
    const BufferView& range = ranges_[bucket];
    const BucketShard& shard = shards().shard(bucket);
    return {part(range, shard.own_begin, shard.block), part(range, 0, shard.rest_begin)};
  }

  std::vector<backend::AllGather> gathers_;  ///< operations of gather_all()
};

}  // namespace DTRAIN_NAMESPACE::ddp
