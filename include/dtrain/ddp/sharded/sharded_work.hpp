#pragma once
/// @file
/// ShardedWork: common part of a sharded optimizer's reductions, on host and device. ShardedGradients: reduced
/// gradients before the update; ClipGradients clips them.

#include <cstddef>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/ddp/sharded/shard_layout.hpp"
#include "dtrain/ddp/sharded/sharded_options.hpp"
#include "dtrain/ddp/sharded/shards.hpp"
#include "dtrain/ddp/step_work.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The reduced gradients of a step, each rank's share, before the update: an argument of clip_gradients and
/// LossScaler::step.
/// @ingroup sharding
class ShardedGradients {
 public:
  explicit ShardedGradients(GradientNorm norm) noexcept : norm_(norm) {}

  /// Norm of all ranks' gradients, equal on all ranks.
  const GradientNorm& gradient_norm() const noexcept { return norm_; }

  /// The update multiplies the gradients by `factor`, in f32.
  void scale_gradients(double factor) noexcept {
    factor_ *= factor;
    norm_ = norm_.times(factor);
  }
  double factor() const noexcept { return factor_; }

 private:
  GradientNorm norm_;
  double factor_ = 1;
};

class LossScaler;
class DeviceLossScaler;  // where there is CUDA

/// Decides, with the same result on every rank, whether a step updates; may scale the gradients.
using GradientInspection = std::function<bool(ShardedGradients&)>;

/// Clips the gradients of a step with a ShardedOptimizer as clip_gradients() does, and updates by them:
///
///   ddp.backward(f, optimizer, dtrain::ClipGradients(1.0));  // the same on every rank
///
/// In host memory the same as a function that calls clip_gradients(). In device memory the host waits for nothing, and
/// the step may be captured in a CUDA graph: one all-reduce adds up the ranks' sums of squares (8 bytes for each 32 KiB
/// of a rank's gradients), a kernel writes the factor to device memory, and the update reads the factor there. The host
/// does not learn the norm. Gradients whose norm is not finite stay as they are, and the update uses them, unless there
/// is a scaler.
/// - ClipGradients(1.0, &scaler) first divides the gradients by the scale of a LossScaler, or of a DeviceLossScaler,
/// for which the host does not wait. A step whose gradients are not finite updates nothing. Lifetime: the scaler
/// outlives the step, a DeviceLossScaler also the step's work and graphs of it.
/// @ingroup sharding
template <class Scaler = void>
class ClipGradients {
 public:
  /// @throws Error (invalid_argument) if `max_norm` is not positive, or a scaler's address null
  explicit ClipGradients(double max_norm, Scaler* scaler = nullptr) : max_norm_(max_norm), scaler_(scaler) {
    require_max_norm(max_norm);
    if (!std::is_void_v<Scaler> && scaler == nullptr) {
      throw_error(Errc::invalid_argument,
                  "ClipGradients was given a loss scaler whose address is null; without one, leave the argument out",
                  {});
    }
  }

  double max_norm() const noexcept { return max_norm_; }
  Scaler* scaler() const noexcept { return scaler_; }

  bool operator()(ShardedGradients& gradients) const {
    if constexpr (!std::is_void_v<Scaler>) {
      if (!scaler_->step(gradients)) return false;
    }
    clip_gradients(gradients, max_norm_);
    return true;
  }

 private:
  double max_norm_;
  Scaler* scaler_;
};

namespace detail {

template <class I>
inline constexpr bool is_scaler =
    std::is_same_v<const I, const LossScaler> || std::is_same_v<const I, const DeviceLossScaler>;

/// Whether a step's argument `inspect` is a DeviceLossScaler, or clips after one.
template <class I>
inline constexpr bool unscales_on_device = std::is_same_v<const I, const DeviceLossScaler>;
template <class Scaler>
inline constexpr bool unscales_on_device<ClipGradients<Scaler>> = unscales_on_device<Scaler>;

}  // namespace detail

/// The function of a step's argument `inspect`: a function, null, or a LossScaler, which outlives the step.
template <class I>
GradientInspection inspection_of(I&& inspect) {
  if constexpr (detail::is_scaler<std::remove_cvref_t<I>>) {
    return [&inspect](ShardedGradients& gradients) { return inspect.step(gradients); };
  } else {
    return std::forward<I>(inspect);
  }
}

/// Lifetime: as StepWork.
template <class C>
class ShardedWork : public StepWork<C> {
 public:
  using Stream = typename C::Stream;

  ShardedWork(std::size_t buckets, const ShardedOptions& options) : options_(options), ranges_(buckets) {
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

  /// For the present step, after begin().
  void inspect_with(GradientInspection inspect) { inspect_ = std::move(inspect); }

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
  std::vector<BufferView> ranges_;  ///< ranges of each bucket that is launched
  GradientInspection inspect_;

 private:
  backend::AllGather gather_of(std::size_t bucket) const noexcept {
    const BufferView& range = ranges_[bucket];
    const BucketShard& shard = shards().shard(bucket);
    return {part(range, shard.own_begin, shard.block), part(range, 0, shard.rest_begin)};
  }

  std::vector<backend::AllGather> gathers_;  ///< operations of gather_all()
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::ClipGradients;
using ddp::ShardedGradients;
}  // namespace DTRAIN_NAMESPACE
