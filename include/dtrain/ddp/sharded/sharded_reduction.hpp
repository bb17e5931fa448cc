#pragma once
/// @file
/// ShardedReduction of a ShardedOptimizer in host memory: reduce-scatters buckets, updates this rank's share, gathers
/// the new weights.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/ddp/sharded/divided_gradients.hpp"
#include "dtrain/ddp/sharded/sharded_parameters.hpp"
#include "dtrain/ddp/sharded/sharded_work.hpp"
#include "dtrain/ddp/step_work.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Work of a step with a ShardedOptimizer.
/// - Update: a bucket is updated as soon as it is reduced. A step that measures its norm updates buckets when all are
/// reduced; a rule that needs norms of whole parameters, when all are measured.
/// - Gathering: stage 1 gathers a bucket in its own memory as soon as it is updated. Stage 2 gathers buckets when the
/// backward pass has ended. At that time a communicator that CanReadBlocks copies weights from the other ranks' memory,
/// in both stages, instead of gathering them.
/// - With early_update, a step that updates buckets at once also gathers and stores each updated bucket at once.
/// - After a failure of the channel nothing is updated or stored, because gradients are not reduced. The bucket's
/// memory is not written, because other ranks may still read it.
template <class C>
class ShardedReduction final : public ShardedWork<C> {
 public:
  using typename ShardedWork<C>::Stream;
  using Buckets = typename StepWork<C>::Buckets;

  ShardedReduction(ShardedParameters parameters, const BucketPlan& plan, const ShardedOptions& options,
                   typename ShardedWork<C>::Norms& norms)
      : ShardedWork<C>(parameters.buckets(), options, norms),
        parameters_(std::move(parameters)),
        ended_(parameters_.buckets()),
        own_is_stored_(parameters_.buckets()) {
    if (options_.divides_gradients()) divided_.emplace(parameters_.layout(), plan);
  }

  const Shards& shards() const noexcept override { return parameters_; }
  Shards& shards() noexcept { return parameters_; }

  /// Bytes of gradients outside the arena.
  std::size_t gradient_bytes() const noexcept { return divided_ ? divided_->bytes() : 0; }

  StepNeeds begin(Buckets& buckets, const StepOptions& options) override {
    buckets_ = &buckets;
    step_ = &options;
    values_are_free_ = false;
    std::fill(ranges_.begin(), ranges_.end(), BufferView{});
    parameters_.begin_step();
    if (divided_) divided_->begin_step();
    // Two reductions, the update, a copy to the bucket, the gathering, and one or two copies to the model.
    return {.items_per_bucket = 7};
  }

  void pack(std::size_t parameter, const std::byte* gradient, const GradientSlot& slot) override {
    if (divided_) divided_->pack(parameter, gradient, slot, waiting());
  }

  void prepare(std::size_t bucket) override {
    if (divided_) divided_->before_launch(bucket, waiting());
  }

  void launch(std::size_t bucket, const BufferView& range, ReduceOp op, C& channel, Stream stream) override {
    ranges_[bucket] = range;
    if (stores_at_once()) values_are_free_ = true;
    this->reduce(bucket, own_part(bucket), op, channel, stream);
    if (divided_ && !stores_at_once()) divided_->launched(bucket, stream);
    if (step_->needs_norm()) {
      stream.enqueue([this, bucket]() noexcept { parameters_.add_squares(bucket, own_part(bucket)); });
    } else if (parameters_.measures()) {
      measure(bucket, stream);
    } else {
      update(bucket, channel, stream);
      if (stores_at_once()) gather_and_store(bucket, channel, stream);
    }
    if (divided_ && stores_at_once()) divided_->launched(bucket, stream);
  }

  bool finish(C& channel, Stream stream) override {
    values_are_free_ = true;
    if (step_->needs_norm() && !decided(channel, stream)) return false;
    if (parameters_.measures()) add_up_norms(channel, stream);
    for (std::size_t bucket = 0; bucket < ranges_.size(); ++bucket) {
      if (!updates_at_once()) update(bucket, channel, stream);
      if (gathers_last() && !stores_at_once()) gather_and_store(bucket, channel, stream);
    }
    for (std::size_t bucket = 0; bucket < ranges_.size(); ++bucket) {
      buckets_->wait_for_event(ended_[bucket]);
      parameters_.throw_if_failed(bucket);
      if (!gathers_last()) parameters_.store(bucket, ranges_[bucket].data);
    }
    parameters_.end_step();
    return true;
  }

 private:
  using Event = typename Stream::Event;
  using ShardedWork<C>::gather, ShardedWork<C>::part, ShardedWork<C>::place_of;
  using ShardedWork<C>::norms_, ShardedWork<C>::options_, ShardedWork<C>::ranges_, ShardedWork<C>::step_;
  static constexpr bool reads_blocks = backend::CanReadBlocks<C>;

  auto waiting() const noexcept {
    return [buckets = buckets_](Event& event) { buckets->wait_for_event(event); };
  }

  /// Memory of this rank's reduced gradients of the bucket.
  ShardMemory own_part(std::size_t bucket) noexcept { return divided_ ? divided_->part(bucket) : place_of(bucket); }

  /// Collective, blocking: whether the step updates.
  bool decided(C& channel, Stream stream) {
    for (std::size_t bucket = 0; bucket < ranges_.size(); ++bucket)
      buckets_->wait_for_bucket(bucket);
    StepDecision decision = decide_step(*step_, norm(channel, stream));
    if (decision.updates) decision.clip(step_->clip_norm);
    norms_.set(decision.norm);
    if (!decision.updates) return false;
    parameters_.set_gradient_factor(decision.factor);
    for (std::size_t bucket = 0; parameters_.measures() && bucket < ranges_.size(); ++bucket)
      measure(bucket, stream);
    return true;
  }

  /// The parameters' norms, for the rule, once all buckets are measured.
  void add_up_norms(C& channel, Stream stream) {
    const BufferView sums = buffer_view(parameters_.square_sums());
    channel.enqueue(backend::AllReduce{sums, sums, ReduceOp::sum}, stream);
  }

  /// Whether launch() also updates; else finish() does.
  bool updates_at_once() const noexcept { return !step_->needs_norm() && !parameters_.measures(); }

  /// Whether launch() also stores new weights in the model.
  bool stores_at_once() const noexcept { return options_.early_update && updates_at_once(); }

  /// Whether buckets are gathered after the backward pass, which no longer needs the old weights; or at once, if
  /// stores_at_once(). Else update() gathers them, and finish() stores them.
  bool gathers_last() const noexcept { return options_.divides_gradients() || reads_blocks || options_.early_update; }

  /// Gathers and stores one bucket. Buckets of stage 2 share memory: each is stored before the next bucket is gathered.
  void gather_and_store(std::size_t bucket, C& channel, Stream stream) {
    if (divided_) {
      stream.enqueue([this, bucket, &channel]() noexcept {
        if (!channel.failure()) copy_to_place(bucket);
      });
    }
    if constexpr (reads_blocks) {
      read(bucket, channel, stream);
    } else {
      gather(bucket, channel, stream);
      stream.enqueue([this, bucket, &channel]() noexcept {
        if (!channel.failure()) parameters_.store(bucket, ranges_[bucket].data);
      });
    }
    stream.record(ended_[bucket]);
  }

  void read(std::size_t bucket, C& channel, Stream stream) {
    const BucketShard& shard = parameters_.shard(bucket);
    const auto store = [](const backend::BlockReader& reader, int rank, std::size_t begin, const std::byte* from,
                          std::size_t bytes) noexcept {
      const ShardedParameters& parameters = static_cast<ShardedReduction*>(reader.context)->parameters_;
      const std::size_t block = parameters.shard(reader.number).block * parameters.element_bytes(reader.number);
      parameters.store(reader.number, static_cast<std::size_t>(rank) * block + begin, from, bytes);
    };
    const BufferView own = part(ranges_[bucket], shard.own_begin, shard.block);
    if (shard.block != 0) channel.enqueue(backend::ReadBlocks{own, {this, bucket, store}}, stream);
    stream.enqueue([this, bucket, &channel]() noexcept {
      if (!own_is_stored_[bucket] && !channel.failure()) store_own(bucket);
    });
  }

  void store_own(std::size_t bucket) const noexcept {
    const BucketShard& shard = parameters_.shard(bucket);
    const std::size_t element = parameters_.element_bytes(bucket);
    const ShardMemory place = place_of(bucket);
    parameters_.store(bucket, shard.own_begin * element, place.block, shard.block * element);
    parameters_.store(bucket, shard.rest_begin * element, place.rest, shard.rest_count * element);
  }

  void copy_to_place(std::size_t bucket) noexcept {
    const BucketShard& shard = parameters_.shard(bucket);
    const std::size_t element = parameters_.element_bytes(bucket);
    const ShardMemory place = place_of(bucket);
    const ShardMemory own = own_part(bucket);
    if (shard.block != 0) kernels::copy_bytes(place.block, own.block, shard.block * element);
    if (shard.rest_count != 0) kernels::copy_bytes(place.rest, own.rest, shard.rest_count * element);
  }

  void measure(std::size_t bucket, Stream stream) {
    stream.enqueue([this, bucket]() noexcept { parameters_.measure(bucket, own_part(bucket)); });
  }

  /// Updates a bucket, and gathers it unless gathers_last(). A communicator that CanReadBlocks also lets the update
  /// store the new weights in the model, if the values are free, while they are in the first-level cache.
  void update(std::size_t bucket, C& channel, Stream stream) {
    stream.enqueue([this, bucket, &channel]() noexcept {
      if (channel.failure()) return;
      own_is_stored_[bucket] = reads_blocks && values_are_free_;
      parameters_.update(bucket, own_part(bucket), own_is_stored_[bucket] != 0);
    });
    if (gathers_last()) return;
    gather(bucket, channel, stream);
    stream.record(ended_[bucket]);
  }

  /// Collective, blocking.
  GradientNorm norm(C& channel, Stream stream) {
    squares_ = parameters_.own_squares();
    const BufferView sum = buffer_view(std::span(&squares_, 1));
    channel.enqueue(backend::AllReduce{sum, sum, ReduceOp::sum}, stream);
    Event summed;
    stream.record(summed);
    buckets_->wait_for_event(summed);
    return GradientNorm::of_squares(squares_ + parameters_.common_squares());
  }

  ShardedParameters parameters_;
  std::optional<DividedGradients<Stream>> divided_;  ///< stage 2; else reduced gradients stay in the arena
  std::vector<Event> ended_;                         ///< each bucket: its weights are gathered; if the stream stores
                                                     ///< them, also stored
  std::vector<unsigned char> own_is_stored_;         ///< each bucket: whether the update stored this rank's weights
  std::atomic<bool> values_are_free_{false};         ///< whether the backward pass no longer uses the model's values
  Buckets* buckets_ = nullptr;
  double squares_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::ddp
