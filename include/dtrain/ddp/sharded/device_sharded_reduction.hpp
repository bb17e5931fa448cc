#pragma once
/// @file
/// DeviceShardedReduction of a ShardedOptimizer in device memory: reduces, updates and gathers buckets, all on streams.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/precision/device_loss_scaler.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/ddp/sharded/device_rule.hpp"
#include "dtrain/ddp/sharded/device_shards.hpp"
#include "dtrain/ddp/sharded/divided_gradients.hpp"
#include "dtrain/ddp/sharded/sharded_work.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/kernels/norm_kernels.hpp"
#include "dtrain/stream/cuda/kernels/scaled_copy_batch.hpp"
#include "dtrain/stream/cuda/kernels/square_sum_kernel.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Work of a step with a ShardedOptimizer whose model is in device memory. The host waits for nothing, except in a step
/// with an inspection.
/// - Update: a bucket is updated after its reduction, on the same stream. A step that inspects or clips its gradients
/// updates buckets in finish().
/// - Norm: after a bucket's reduction a kernel writes sums of squares of this rank's part to device memory. In finish()
/// one all-reduce adds up the sums of the ranks' blocks, and a kernel writes the norm. Clipping needs no host: a kernel
/// writes the factor after the norm, and the update multiplies each bucket's gradients by it in f32. So does a
/// DeviceLossScaler. Where gradients are not finite, the rule's kernels change nothing: present values are stored
/// again.
/// - Gathering: stage 1 gathers a bucket in its own memory after its update, and buckets that finish() updates
/// together. Stage 2 keeps this rank's new weights apart, and gathers buckets in finish().
/// - Storing: in finish(), in stage 1 all buckets together, after all that the streams of the step's gradients hold
/// then: the backward pass, which uses the present values. With early_update a step that updates at once gathers
/// and stores after each update.
/// - The update's number: the host gives it to kernels. In a step that is captured or has a DeviceLossScaler, and in
/// each step after one, a function of the host counts the updates in the order of the stream, and a copy brings the
/// numbers to device memory: each replay is one more update, and an overflow is none. A replay reads the rule when it
/// runs. The program changes the rule between other steps, not within one.
/// - After a failed step, state and values are undefined.
/// Threads: as StepWork. Lifetime: outlives graphs of its steps.
template <class C, class R>
class DeviceShardedReduction final : public ShardedWork<C> {
 public:
  using typename ShardedWork<C>::Stream;
  using Buckets = typename StepWork<C>::Buckets;
  using OwnShards = DeviceShards;

  /// Blocking: allocates. @pre load_kernels() @param shards of the same plan @throws Error (unsupported) if the driver
  /// does not load the kernels; (cuda)
  DeviceShardedReduction(std::unique_ptr<DeviceShards> shards, std::shared_ptr<const R> rule, const BucketPlan& plan,
                         const ShardedOptions& options, CudaBucketNorms& norms, Stream stream)
      : ShardedWork<C>(shards->buckets(), options, norms),
        memory_(new Memory{{}, std::move(shards), std::move(rule), {}, {}, {}}) {
    if (options_.divides_gradients()) {
      memory_->places.emplace(device_shards().layout(), plan);
      memory_->parts = stream::cuda::DeviceBuffer(memory_->places->bytes(), stream.device().index);
    }
    for (std::size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
      const BucketShard& shard = device_shards().shard(bucket);
      const std::size_t element = device_shards().element_bytes(bucket);
      sums_.push_back({own_sums_, rest_sums_});
      own_sums_ += stream::cuda::square_sum_blocks(shard.block * element);
      rest_sums_ += stream::cuda::square_sum_blocks(shard.rest_count * element);
    }
    const std::size_t sums = own_sums_ + rest_sums_ + 1;  // loading writes one
    memory_->live = stream::cuda::DeviceBuffer(sizeof(Live) + sums * sizeof(double), stream.device().index);
    memory_->pinned = stream::cuda::PinnedBuffer(sizeof(Live));
    std::memset(memory_->pinned.data(), 0, memory_->pinned.bytes());
    bool loads = norm_kernels_.load(&live()->norm, &pinned().norm, stream);
    if constexpr (!detail::HasFormula<R>) {
      device_shards().allocate_arrays();
      const double* const factor = &live()->norm.factor;
      loads = loads && stream::cuda::ScaledCopyBatch::load_in_place(DType::f32, factor, stream);
    }
    for (const PlannedBucket& bucket : plan.buckets) {
      loads = loads && stream::cuda::SquareSumKernel::load(bucket.dtype, square_sums(), stream);
    }
    if (!loads) DeviceShards::refuse_without_kernels(stream.device());
  }

  /// Launches kernels of a step for no elements. @returns whether the driver has loaded all
  static bool load_kernels(const BucketPlan& plan, const R& rule, Stream stream) {
    bool loads = true;
    for (const PlannedBucket& bucket : plan.buckets) {
      loads = loads && DeviceShards::load_kernels(bucket.dtype, stream) &&
              static_cast<bool>(stream::cuda::SquareSumKernel::find(bucket.dtype));
      if constexpr (detail::HasFormula<R>) loads = loads && load_rule(rule, stream, bucket.dtype);
    }
    if constexpr (!detail::HasFormula<R>) loads = loads && load_rule(rule, stream);
    return loads;
  }

  /// Blocking: until the last step has run, or for 5 s; then its memory is left to it.
  ~DeviceShardedReduction() {
    try {
      constexpr std::chrono::seconds patience{5};
      if (ended_.block_until_complete(Deadline::after(patience)) == stream::WaitResult::complete) return;
    } catch (const std::exception&) {  // the device has failed
    }
    static_cast<void>(memory_.release());
  }

  const Shards& shards() const noexcept override { return *memory_->shards; }
  Shards& shards() noexcept { return *memory_->shards; }

  /// Bytes of gradients outside the arena.
  std::size_t gradient_bytes() const noexcept { return memory_->parts.bytes() + memory_->shards->scratch_bytes(); }

  StepNeeds begin(Buckets& buckets, const StepOptions& options) override {
    buckets_ = &buckets;
    step_ = &options;
    scaler_ = options.scaler.on_device();
    is_live_ = is_live_ || scaler_ != nullptr;
    factor_ = 1;
    std::fill(ranges_.begin(), ranges_.end(), BufferView{});
    return {.unpacks = false};  // streams of a device run no work of the host
  }

  /// Between steps. Collective, enqueued: each collective of a step, also of one that clips: of blocks and of rests for
  /// the extreme sizes, and all gathers together. @param ranges memory for each bucket, whose content is lost
  void connect(std::span<const BufferView> ranges, ReduceOp op, C& channel, Stream stream) {
    std::copy(ranges.begin(), ranges.end(), ranges_.begin());
    const auto reduce_and_gather = [&](std::size_t bucket) {
      this->reduce(bucket, own_part(bucket), op, channel, stream);
      this->gather(bucket, channel, stream);
    };
    const auto bytes_of = [this](std::size_t bucket, std::size_t count) {
      return count * device_shards().element_bytes(bucket);
    };
    const auto type_of = [&](std::size_t i) { return ranges_[i].dtype; };
    for_extremes(
        ranges_.size(), type_of, [&](std::size_t i) { return bytes_of(i, shards().shard(i).block); },
        reduce_and_gather);
    for_extremes(
        ranges_.size(), type_of, [&](std::size_t i) { return bytes_of(i, shards().shard(i).rest_count); },
        reduce_and_gather);
    add_sums(channel, stream);
    if (!divides()) this->gather_all(channel, stream);
    stream.record(ended_);
  }

  /// Not called: the gradient copier packs gradients.
  void pack(std::size_t, const std::byte*, const GradientSlot&) override {}

  void launch(std::size_t bucket, const BufferView& range, ReduceOp op, C& channel, Stream stream) override {
    ranges_[bucket] = range;
    if (bucket == 0) begin_update(stream);
    this->reduce(bucket, own_part(bucket), op, channel, stream);
    if (step_->needs_norm()) sum_squares(bucket, stream);
    if (updates_last()) return;
    update({bucket, bucket + 1});
    if (!divides()) this->gather(bucket, channel, stream);
    if (options_.early_update) store({bucket, bucket + 1}, channel, stream);
  }

  bool finish(C& channel, Stream stream) override {
    if (step_->needs_norm()) measure(channel, stream);
    if (scaler_ != nullptr) {
      buckets_->wait_for_producers();  // which may read the scale
      scaler_->enqueue(&live()->norm, &pinned().norm, step_->most_norm(), stream);
    }
    const bool updates = !step_->needs_host() || decided(stream);
    if (updates && scaler_ == nullptr && (clips() || factor_ != 1)) {
      norm_kernels_.rescale(&live()->norm, &pinned().norm, factor_, step_->most_norm(), stream);
    }
    if (step_->needs_norm()) norms_.adopt(&live()->norm, stream);
    if (updates) {
      if (scaler_ != nullptr) count_update(stream);
      const BucketRange all{0, ranges_.size()};
      if (updates_last()) {
        update(all);
        if (!divides()) this->gather_all(channel, stream);
      }
      if (updates_last() || !options_.early_update) {
        buckets_->wait_for_producers();
        store(all, channel, stream);
      }
      if (!is_live_) shards().end_step();
    }
    buckets_->unpack();
    if (!stream.is_capturing()) stream.record(ended_);
    return updates;
  }

  /// Blocking: until the last step that was not captured has run. @throws as StepWork::Buckets::wait_for_event
  void wait_for_step() {
    if (buckets_ == nullptr) return;
    const stream::cuda::RelaxedCapture relaxed;  // the program may capture a step
    buckets_->wait_for_event(ended_);
  }

 private:
  using Event = typename Stream::Event;
  using BucketRange = DeviceShards::BucketRange;
  using ShardedWork<C>::place_of;
  using ShardedWork<C>::norms_, ShardedWork<C>::options_, ShardedWork<C>::ranges_, ShardedWork<C>::step_;

  /// In pinned memory and in device memory: numbers that the host writes, and the norm, which kernels write to both.
  struct Live {
    LiveUpdate update;
    stream::cuda::DeviceNorm norm;
  };
  /// Memory that the enqueued work of a step uses, and the rule.
  struct Memory {
    std::optional<DividedParts> places;  ///< places of `parts`; stage 2 alone
    std::unique_ptr<DeviceShards> shards;
    std::shared_ptr<const R> rule;
    stream::cuda::DeviceBuffer parts;  ///< stage 2: this rank's gradients, then its new weights
    stream::cuda::DeviceBuffer live;   ///< a Live; sums of squares of all buckets' blocks, then those of all rests
    stream::cuda::PinnedBuffer pinned;

    Live& numbers() const noexcept { return *reinterpret_cast<Live*>(pinned.data()); }

    /// Counts an update, by this rule. @param unscaled no update if the gradients are not finite
    void count([[maybe_unused]] const R& by, bool unscaled) noexcept {
      if (unscaled && numbers().norm.found_inf != 0) return;
      shards->end_step();
      numbers().update.step = shards->steps();
      if constexpr (detail::HasUpdateKernel<R>) {
        numbers().update.numbers = detail::update_numbers(by, shards->steps());
      }
    }
  };
  /// Places of a bucket's first sums of squares, among the blocks' sums and among the rests'.
  struct Sums {
    std::size_t own;
    std::size_t rest;
  };

  bool divides() const noexcept { return memory_->places.has_value(); }
  bool clips() const noexcept { return step_->clip_norm > 0; }
  /// Whether buckets are updated when all are reduced, by gradients times a factor that a kernel writes.
  bool updates_last() const noexcept { return clips() || scaler_ != nullptr || step_->needs_host(); }

  DeviceShards& device_shards() const noexcept { return *memory_->shards; }
  Live& pinned() const noexcept { return memory_->numbers(); }
  Live* live() const noexcept { return reinterpret_cast<Live*>(memory_->live.data()); }
  double* square_sums() const noexcept { return reinterpret_cast<double*>(memory_->live.data() + sizeof(Live)); }

  /// Memory of this rank's reduced gradients of the bucket.
  ShardMemory own_part(std::size_t bucket) const noexcept {
    return divides() ? memory_->places->of(bucket, memory_->parts.data()) : place_of(bucket);
  }

  /// Lets the stream count the update, once a step was captured.
  void begin_update(Stream stream) {
    const bool captures = stream.is_capturing();
    if (captures && step_->needs_host()) refuse_captured_decision();
    is_live_ = is_live_ || captures;
    if (!is_live_ || step_->needs_host() || scaler_ != nullptr) return;
    count_update(stream);
  }

  void count_update(Stream stream) {
    if constexpr (detail::HasUpdateKernel<R>) {
      if (!stream.is_capturing()) {
        enqueue_count(stream, *memory_->rule);
      } else {
        enqueue_count(stream);
      }
    } else {
      enqueue_count(stream);
    }
    stream::cuda::check(cudaMemcpyAsync(live(), &pinned(), sizeof(LiveUpdate), cudaMemcpyHostToDevice, stream.native()),
                        "cudaMemcpyAsync");
  }

  /// By the rule as it is when the stream comes to it.
  void enqueue_count(Stream stream) {
    const auto count = scaler_ != nullptr ? &count_by_present_rule<true> : &count_by_present_rule<false>;
    stream::cuda::check(cudaLaunchHostFunc(stream.native(), count, memory_.get()), "cudaLaunchHostFunc");
  }
  template <bool unscaled>
  static void count_by_present_rule(void* given) {
    auto* const memory = static_cast<Memory*>(given);
    memory->count(*memory->rule, unscaled);
  }

  /// By this rule, which the program may change before the stream comes to it.
  void enqueue_count(Stream stream, const R& rule) {
    struct Counting {
      Memory* memory;
      R rule;
      bool unscaled;
    };
    const auto count = [](void* given) {
      const std::unique_ptr<Counting> counting(static_cast<Counting*>(given));
      counting->memory->count(counting->rule, counting->unscaled);
    };
    auto counting = std::make_unique<Counting>(Counting{memory_.get(), rule, scaler_ != nullptr});
    stream::cuda::check(cudaLaunchHostFunc(stream.native(), count, counting.get()), "cudaLaunchHostFunc");
    static_cast<void>(counting.release());
  }

  void update(BucketRange buckets) {
    DeviceStepInfo info{is_live_ ? 0 : shards().steps() + 1, is_live_ ? &live()->update : nullptr};
    if (scaler_ != nullptr) info.found_inf = &live()->norm.found_inf;
    const double* const factor = updates_last() ? &live()->norm.factor : nullptr;
    const auto memory_of = [this](std::size_t bucket) { return own_part(bucket); };
    device_shards().update(buckets, memory_of, *memory_->rule, info, factor);
  }

  /// Stores the buckets. In stage 2 they share memory: each is gathered and stored before the next one, in the order of
  /// the forward pass.
  void store(BucketRange buckets, C& channel, Stream stream) {
    if (!divides()) return device_shards().store(buckets, ranges_);
    for (std::size_t bucket = buckets.end; bucket-- > buckets.begin;) {
      const BucketShard& shard = shards().shard(bucket);
      const std::size_t element = shards().element_bytes(bucket);
      const ShardMemory place = place_of(bucket);
      const ShardMemory own = own_part(bucket);
      copy(place.block, own.block, shard.block * element, stream);
      copy(place.rest, own.rest, shard.rest_count * element, stream);
      this->gather(bucket, channel, stream);
      device_shards().store({bucket, bucket + 1}, ranges_);
    }
  }

  static void copy(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) {
    if (bytes == 0) return;
    stream::cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.native()), "cudaMemcpyAsync");
  }

  void sum_squares(std::size_t bucket, Stream stream) {
    const BucketShard& shard = shards().shard(bucket);
    const ShardMemory own = own_part(bucket);
    const auto kernel = stream::cuda::SquareSumKernel::find(ranges_[bucket].dtype);
    const Sums& at = sums_[bucket];
    if (shard.block != 0) {
      kernel.enqueue(this->like(ranges_[bucket], own.block, shard.block), square_sums() + at.own, stream);
    }
    if (shard.rest_count != 0) {
      double* const sums = square_sums() + own_sums_ + at.rest;
      kernel.enqueue(this->like(ranges_[bucket], own.rest, shard.rest_count), sums, stream);
    }
  }

  /// Collective, enqueued: the norm of all ranks' gradients. All ranks have the rests, and as many sums of blocks.
  void measure(C& channel, Stream stream) {
    add_sums(channel, stream);
    norm_kernels_.measure(&live()->norm, &pinned().norm, square_sums(), own_sums_ + rest_sums_, stream);
  }

  void add_sums(C& channel, Stream stream) {
    const BufferView own{reinterpret_cast<std::byte*>(square_sums()), own_sums_, DType::f64, stream.device()};
    if (own_sums_ != 0) channel.enqueue(backend::AllReduce{own, own, ReduceOp::sum}, stream);
  }

  /// Blocking, after measure(): whether the step updates, as the host decides.
  bool decided(Stream stream) {
    wait_for(stream);
    const stream::cuda::DeviceNorm& norm = pinned().norm;
    const StepDecision decision = decide_step(*step_, {norm.norm, norm.found_inf == 0, norm.before_clipping});
    factor_ = decision.factor;
    if (decision.updates && is_live_) count_update(stream);
    return decision.updates;
  }

  /// Blocking: until the work that is now enqueued has run.
  void wait_for(Stream stream) {
    Event reached;
    stream.record(reached);
    buckets_->wait_for_event(reached);
  }

  std::unique_ptr<Memory> memory_;
  std::vector<Sums> sums_;
  std::size_t own_sums_ = 0;   ///< number of the blocks' sums of squares, equal on all ranks
  std::size_t rest_sums_ = 0;  ///< number of the rests'
  stream::cuda::NormKernels norm_kernels_;
  const DeviceLossScaler* scaler_ = nullptr;  ///< scaler of this step
  double factor_ = 1;                         ///< the host's
  bool is_live_ = false;  ///< whether a step was captured, or had a scaler: the stream counts updates
  Event ended_;           ///< recorded at the end of each step that is not captured
  Buckets* buckets_ = nullptr;
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
