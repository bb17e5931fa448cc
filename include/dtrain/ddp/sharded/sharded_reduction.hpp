#pragma once
/// @file
/// ShardedReduction: reduce-scatters buckets, updates this rank's share, and gathers the new weights.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/bucket_update.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/ddp/sharded/sharded_parameters.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The reduced gradients of a step, each rank's share, before the update: what clip_gradients and LossScaler::step
/// take.
class ShardedGradients {
 public:
  explicit ShardedGradients(GradientNorm norm) noexcept : norm_(norm) {}

  /// Of all ranks' gradients; equal on all ranks.
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

/// Decides, with the same result on every rank, whether a step updates; may scale the gradients.
using GradientInspection = std::function<bool(ShardedGradients&)>;

/// A step updates and gathers each bucket as soon as it is reduced. With an inspection it waits until all are; with a
/// rule that needs norms of whole parameters, until all are measured.
template <class C>
class ShardedReduction final : public BucketUpdate<C> {
 public:
  using Stream = typename C::Stream;
  using Waits = typename BucketUpdate<C>::Waits;

  explicit ShardedReduction(ShardedParameters parameters)
      : parameters_(std::move(parameters)), ranges_(parameters_.buckets()) {}

  const ShardedParameters& parameters() const noexcept { return parameters_; }
  ShardedParameters& parameters() noexcept { return parameters_; }

  void begin_step(GradientInspection inspect) {
    inspect_ = std::move(inspect);
    std::fill(ranges_.begin(), ranges_.end(), BufferView{});
    parameters_.begin_step();
  }

  bool is_for(const BucketPlan& plan) const noexcept override { return parameters_.is_for(plan); }

  void launch(std::size_t bucket, const BufferView& range, ReduceOp op, C& channel, Stream stream) override {
    ranges_[bucket] = range;
    const BucketShard& shard = parameters_.shard(bucket);
    if (shard.block != 0) {
      channel.reduce_scatter(part(range, 0, shard.rest_begin), part(range, shard.own_begin, shard.block), op, stream);
    }
    if (shard.rest_count != 0) {
      const BufferView rest = part(range, shard.rest_begin, shard.rest_count);
      channel.all_reduce(rest, rest, op, stream);
    }
    if (inspect_) {
      stream.enqueue([this, bucket]() noexcept { parameters_.add_squares(bucket, ranges_[bucket].data); });
    } else if (parameters_.measures()) {
      measure(bucket, stream);
    } else {
      update(bucket, channel, stream);
    }
  }

  void finish(C& channel, Stream stream, const Waits& waits) override {
    const bool updates_now = inspect_ || parameters_.measures();
    if (inspect_ && !inspected(channel, stream, waits)) {
      return;
    }
    if (updates_now) {
      update_all(channel, stream);
    }
    for (std::size_t bucket = 0; bucket < ranges_.size(); ++bucket) {
      if (updates_now) {
        waits.for_event(updated_[bucket]);
      } else {
        waits.for_bucket(bucket);
      }
      parameters_.store(bucket, ranges_[bucket].data);
    }
    parameters_.end_step();
  }

 private:
  using Event = typename Stream::Event;

  static BufferView part(const BufferView& range, std::size_t begin, std::size_t count) noexcept {
    return {range.data + begin * size_bytes(range.dtype), count, range.dtype, range.device};
  }

  /// Collective, blocking: whether the step updates.
  bool inspected(C& channel, Stream stream, const Waits& waits) {
    for (std::size_t bucket = 0; bucket < ranges_.size(); ++bucket) {
      waits.for_bucket(bucket);
    }
    ShardedGradients gradients(norm(channel, stream, waits));
    if (!inspect_(gradients)) {
      return false;
    }
    parameters_.set_gradient_factor(gradients.factor());
    for (std::size_t bucket = 0; parameters_.measures() && bucket < ranges_.size(); ++bucket) {
      measure(bucket, stream);
    }
    return true;
  }

  /// Updates all buckets, once all are measured if the rule measures.
  void update_all(C& channel, Stream stream) {
    if (parameters_.measures()) {
      const BufferView sums = buffer_view(parameters_.square_sums());
      channel.all_reduce(sums, sums, ReduceOp::sum, stream);
    }
    updated_ = std::vector<Event>(ranges_.size());
    for (std::size_t bucket = 0; bucket < ranges_.size(); ++bucket) {
      if (ranges_[bucket].count != 0) {
        update(bucket, channel, stream);
      }
      stream.record(updated_[bucket]);
    }
  }

  void measure(std::size_t bucket, Stream stream) {
    stream.enqueue([this, bucket]() noexcept { parameters_.measure(bucket, ranges_[bucket].data); });
  }

  void update(std::size_t bucket, C& channel, Stream stream) {
    const BufferView range = ranges_[bucket];
    const BucketShard& shard = parameters_.shard(bucket);
    stream.enqueue([this, bucket]() noexcept { parameters_.update(bucket, ranges_[bucket].data); });
    if (shard.block != 0) {
      channel.all_gather(part(range, shard.own_begin, shard.block), part(range, 0, shard.rest_begin), stream);
    }
  }

  /// Collective, blocking.
  GradientNorm norm(C& channel, Stream stream, const Waits& waits) {
    squares_ = parameters_.own_squares();
    const BufferView sum = buffer_view(std::span(&squares_, 1));
    channel.all_reduce(sum, sum, ReduceOp::sum, stream);
    Event summed;
    stream.record(summed);
    waits.for_event(summed);
    const double all = squares_ + parameters_.common_squares();
    return {std::sqrt(all), kernels::is_finite(all)};
  }

  ShardedParameters parameters_;
  std::vector<BufferView> ranges_;
  GradientInspection inspect_;
  std::vector<Event> updated_;
  double squares_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::ShardedGradients;
}  // namespace DTRAIN_NAMESPACE
