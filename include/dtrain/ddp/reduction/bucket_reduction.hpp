#pragma once
/// @file
/// BucketReduction of a Reducer: packs gradients into buckets, launches a collective for each full one, unpacks
/// results. ReducerParts: what options add.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/backend/block_until_complete.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/address_check.hpp"
#include "dtrain/ddp/broadcast/packed_broadcast.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/ddp/profile/reducer_statistics.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/ddp/reduction/accumulation.hpp"
#include "dtrain/ddp/reduction/bucket_rebuild.hpp"
#include "dtrain/ddp/reduction/finite_check.hpp"
#include "dtrain/ddp/reduction/gradient_arena.hpp"
#include "dtrain/ddp/reduction/gradient_copier.hpp"
#include "dtrain/ddp/reduction/pending_buckets.hpp"
#include "dtrain/ddp/reduction/ready_check.hpp"
#include "dtrain/ddp/reduction/reducing_work.hpp"
#include "dtrain/ddp/reduction/step_scaling.hpp"
#include "dtrain/ddp/step_options.hpp"
#include "dtrain/ddp/step_work.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Parts of a model and its group that a reducer uses; each may be missing.
struct ReducerParts {
  std::vector<TensorView> buffers{};         ///< broadcast from rank 0 in each step
  std::shared_ptr<RunningBucket> running{};  ///< updated with each bucket
  BucketRebuild rebuild{};
  AddressCheck::Read read_parameters{};
  bool scales_averages = false;  ///< see setup/scaled_averages.hpp; the same on all ranks
  LateWrites late_writes = LateWrites::unchecked;
};

/// Owns the channel and the arena. Reducer checks the order of the calls. Not movable. Lifetime: the failure context
/// outlives the object.
/// Threads: `add_gradient` concurrently, for different parameters; everything else before the first or after the last
/// of these calls.
template <backend::Communicator Communicator>
class BucketReduction final : StepWork<Communicator>::Buckets {
 public:
  using Stream = typename Communicator::Stream;
  using GradientCopier = GradientCopierFor<Stream>;
  using Norms = BucketNormsFor<Stream>;

  /// Collective, blocking: allocates, and connects the ranks. @throws as Reducer.
  BucketReduction(Communicator communicator, Stream stream, std::span<const Parameter> parameters,
                  std::span<const TensorView> buffers, BucketPlan plan, const DdpOptions& options,
                  const FailureContext& context, std::shared_ptr<RunningBucket> running, bool scales_averages,
                  LateWrites late_writes, HookFunctions<Communicator> hook)
      : communicator_(std::move(communicator)),
        op_(options.reduce_op),
        context_(context),
        sizes_(gradient_sizes(parameters)),
        arena_(communicator_, parameters, std::move(plan), stream.device(), Deadline::after(context.timeout)),
        buffers_(communicator_, buffers, Deadline::after(context.timeout)),
        pending_(parameter_counts(this->plan())),
        meter_(parameters.size(), options, std::move(running)),
        copier_(stream, gradients_, this->plan(), meter_),
        check_(gradients_, GradientCopier::copies_on_stream ? LateWrites::unchecked : late_writes),
        finite_(gradients_, options.on_not_finite),
        sums_(gradients_),
        all_reduce_(norms_) {
    if (GradientCopier::copies_on_stream && options.on_not_finite == OnNotFinite::fail) refuse_fail_on_device();
    if (hook.reduce) hook_.emplace(std::move(hook), parameters, buffers, norms_);
    work_ = &own_work();
    plan_parts();
    if constexpr (requires { copier_.scale_when_packing(1.0); }) {
      if (scales_averages) {
        copier_.scale_when_packing(1.0 / communicator_.size());
        op_ = ReduceOp::sum;
      }
    }
    if constexpr (backend::ConnectsAtFirstUse<Communicator>) {
      if (communicator_.size() > 1) {
        arena_.for_extreme_ranges([this](const BufferView& zeros) {
          hook_ ? hook_->connect(zeros, op_, communicator_, copier_.stream())
                : all_reduce_.connect(zeros, op_, communicator_, copier_.stream());
        });
      }
    }
    wait_for_loads();
  }

  BucketReduction(const BucketReduction&) = delete;
  ~BucketReduction();

  const Communicator& communicator() const noexcept { return communicator_; }
  const BucketPlan& plan() const noexcept { return arena_.plan(); }
  const GradientTable& gradients() const noexcept { return gradients_; }
  const GradientCopier& copier() const noexcept { return copier_; }
  GradientCopier& copier() noexcept { return copier_; }
  const Norms& norms() const noexcept { return norms_; }
  StepMeter& meter() noexcept { return meter_; }
  const StepMeter& meter() const noexcept { return meter_; }
  ReadyCheck& ready_check() noexcept { return check_; }
  GradientSums& sums() noexcept { return sums_; }

  /// Statistics, with the device times measured so far. @param steps, bytes_reduced counts of the caller
  ReducerStatistics statistics(std::uint64_t steps, std::uint64_t bytes_reduced) noexcept {
    if constexpr (GradientCopier::copies_on_stream) copier_.collect_times();
    return statistics_of(meter_, {steps, bytes_reduced, plan().buckets.size(), {}, GradientCopier::is_measured},
                         hook_ ? hook_->traffic() : CompressedTraffic{}, compressed_traffic_of(communicator_));
  }
  std::shared_ptr<const void> memory() const noexcept { return arena_.memory(); }

  /// Blocking: copies the gradient's content into the arena, where the gradient lies from now on, but not in an elastic
  /// job. @returns its new view
  TensorView bind(std::size_t parameter) {
    if (parameter >= gradients_.size()) gradients_.names().refuse_index(parameter);
    const GradientSlot slot = gradients_[parameter];
    if (slot.own != nullptr && !slot.is_bound() && !context_.is_elastic)
      copier_.copy(slot.place, slot.own, slot.bytes, waiting());
    return gradients_.bind(parameter);
  }

  /// Makes the norm of the last step known. Blocking, on CUDA only: until the last step has run. @throws as finish
  void read_norm() {
    if constexpr (GradientCopier::copies_on_stream) norms_.read([this] { wait_for_event(copier_.step_end()); });
  }

  /// Whether this step's work uses memory that an exception of the program may free: a hook's or an optimizer's.
  bool borrows() const noexcept { return work_ != &all_reduce_; }

  /// @param options if they need the norm, requires can_measure_norms; unchanged where this throws the errors below
  /// @param work null: the wrapper's hook, or an all-reduce. @throws as StepWork::require_usable
  void begin_step(StepOptions&& options, StepWork<Communicator>* work, const char* caller) {
    if (work != nullptr && hook_) {
      refuse_work(caller, work->is_for_model()
                              ? "micro-batches, but a gradient hook reduces the buckets; construct "
                                "DistributedDataParallel without the hook, or take sampler.batches()"
                              : "a ShardedOptimizer, but a gradient hook reduces the buckets; construct "
                                "DistributedDataParallel without the hook");
    }
    StepWork<Communicator>& chosen = work != nullptr ? *work : own_work();
    chosen.require_usable(plan(), gradients_, caller);
    const bool measures = chosen.is_for_model() && options.needs_norm();
    if constexpr (GradientCopier::copies_on_stream) {
      if (measures) norms_.require_usable(options.scaler.on_device(), caller);
    }
    work_ = &chosen;
    step_ = std::move(options);  // once nothing refuses the step: the program owns what its function holds
    check_.begin();
    sums_or_checks_ = check_.is_on() || sums_.is_allocated();
    const StepNeeds needs = work_->begin(*this, step_);
    unpacks_ = needs.unpacks;
    buffers_.begin_step(needs.skips_buffer_broadcast);
    meter_.begin();
    if constexpr (!GradientCopier::copies_on_stream) finite_.begin_step(meter_.step(), chosen.is_for_model());
    norms_.begin_step(measures);
    pending_.begin_step();
    if constexpr (GradientCopier::copies_on_stream) {
      copier_.begin_step();
    } else {
      copier_.reserve(needs.items_per_bucket + (check_.is_on() ? 2 : 0) + (finite_.is_on() ? 1 : 0));
    }
  }

  /// Adds a gradient of this step: it is at `gradient` once the work now enqueued on `stream` has run.
  /// @param gradient null: nothing but what passes under no_sync(Adds::wrapper) have left
  void add_gradient(std::size_t parameter, const std::byte* gradient, StreamHandle stream) {
    if (sums_or_checks_) gradient = summed_and_checked(parameter, gradient);
    if (plan().reuses_memory && !GradientCopier::copies_on_stream) {
      work_->pack(parameter, gradient, gradients_[parameter]);
    } else {
      copier_.on_gradient_ready(parameter, gradient, stream);
    }
    mark_gradient_ready(parameter);
  }

  /// Parameters for which `was_announced(i)` is false contribute zeros.
  template <class Announced>
  void zero_fill_others(Announced was_announced) {
    if constexpr (GradientCopier::copies_on_stream) {
      for (std::size_t parameter = 0; parameter < gradients_.size(); ++parameter) {
        if (was_announced(parameter)) copier_.note_producer(parameter);
      }
    }
    for (std::size_t parameter = 0; parameter < gradients_.size(); ++parameter) {
      if (was_announced(parameter)) continue;
      if (plan().reuses_memory && !GradientCopier::copies_on_stream) {
        work_->pack(parameter, nullptr, gradients_[parameter]);
      } else {
        copier_.zero_fill(parameter);
      }
      mark_gradient_ready(parameter);
    }
  }

  /// Sets `act`, which each step calls when all gradients are in their buckets and the last all_reduce is enqueued.
  void on_all_gradients_ready(std::function<void()> act) { on_all_gradients_ready_ = std::move(act); }

  void stop_launching() noexcept { pending_.close(); }

  /// Rethrows the exception of a launch in this step.
  void throw_if_launch_failed() const { pending_.throw_if_launch_failed(); }

  /// Whether all gradients of this step are packed into their buckets, and not only marked ready.
  bool all_complete() const { return pending_.all_complete(); }

  /// Collective. Blocking on host streams: until all gradients are reduced and unpacked. On CUDA, later work of the
  /// producers' streams waits instead; in an elastic job, where an optimizer must not read the gradients of an attempt
  /// that fails, the host also waits. @returns as Step::finish
  /// @throws the job's first cause; Error (timeout); (unsupported) in an elastic job for a step that is captured in a
  /// graph, and as decide_step
  bool finish() {
    if constexpr (GradientCopier::copies_on_stream) {
      if (context_.is_elastic && copier_.is_capturing()) refuse_capture();
      norms_.end_buckets(copier_.stream());
    }
    check_.require_unchanged();
    const bool is_for_model = work_->is_for_model();
    bool updates = work_->finish(communicator_, copier_.stream());
    check_.require_bound_unchanged();
    check_.release();
    sums_.clear();
    work_ = &own_work();
    buffers_.finish(copier_);
    norms_.finish_step();
    if constexpr (GradientCopier::copies_on_stream) {
      if (context_.is_elastic) wait_for_event(copier_.step_end());
    }
    meter_.finished(GradientCopier::is_measured);
    if (is_for_model)
      updates = scale_by_options(
          step_, gradients_, copier_, norms_, [this] { read_norm(); }, waiting());
    if constexpr (!GradientCopier::copies_on_stream) {
      finite_.end_step(step_.scaler.on_host(), !norms_.is_measured() || norms_.norm().finite);
    }
    drop_options();
    return updates;
  }

  void drop_options() noexcept { step_ = {}; }

  /// The check of the last step.
  const FiniteCheck& finite() const noexcept { return finite_; }

  /// Whether scale_gradients() needs norms().norm() on the host before. @throws as BucketNorms::norm if no norm was
  /// measured
  bool needs_norm_to_scale() const {
    if constexpr (GradientCopier::copies_on_stream) return !norms_.may_rescale(copier_.is_capturing());
    return true;
  }

  /// Multiplies the reduced gradients, where the model has them, and their norm by `factor`, then by clipping_factor.
  /// Between steps, or in the capture of a step. @param max_norm infinity: does not clip
  void scale_gradients(double factor, double max_norm) {
    if constexpr (GradientCopier::copies_on_stream) {
      const auto enqueue_factor = [&](Stream stream) { norms_.rescale(nullptr, factor, max_norm, stream); };
      copier_.scale_reduced(norms_.factor(), enqueue_factor, waiting());
    } else {
      StepDecision scaled{true, factor, norms_.norm().times(factor)};
      scaled.clip(max_norm);
      if (scaled.factor != 1) copier_.scale_reduced(scaled.factor, waiting());
      norms_.set(scaled.norm);
    }
  }

  Norms& norms() noexcept { return norms_; }

  /// Blocking. Between steps: adopts next_plan(), and moves gradients with their content. @returns whether they moved
  bool rebuild_buckets(std::span<const std::size_t> order, const BucketRebuild& rebuild, const BucketCaps& caps) {
    std::optional<BucketPlan> next = next_plan(communicator_, rebuild, plan(), sizes_, order, caps, meter_);
    if (!next) return false;
    read_norm();
    const bool moves = next->offset_of != plan().offset_of;
    if (moves)
      move_gradients(gradients_, *next, arena_.data(), copier_, waiting(), rebuild.bind, rebuild.ranks_on_host);
    arena_.set_plan(std::move(*next));
    pending_.plan(parameter_counts(plan()));
    plan_parts();
    copier_.rebuild_buckets();
    return moves;
  }

  /// Collective, blocking. Between steps; as GradientArena::reuse_memory.
  void reuse_memory(bool unbinds) {
    if constexpr (GradientCopier::copies_on_stream) copier_.synchronize(waiting());  // the arena may still be in use
    arena_.reuse_memory(communicator_, Deadline::after(context_.timeout), unbinds);
    if constexpr (GradientCopier::copies_on_stream) copier_.rebuild_buckets();
  }

  /// Collective, blocking. Between steps: connects the ranks for the steps of an optimizer's work, whose
  /// `connect(ranges, op, communicator, stream)` enqueues their collectives. The ranges are memory for each bucket,
  /// whose content is lost, in the arena or, where that has bound gradients, in memory for this call.
  template <class Work>
  void connect([[maybe_unused]] Work& work) {
    std::optional<typename Communicator::Allocation> apart;
    if constexpr (backend::ConnectsAtFirstUse<Communicator>) {
      if (communicator_.size() > 1) {
        std::vector<BufferView> ranges;
        std::size_t most = 0;
        for (std::size_t bucket = 0; bucket < arena_.buckets(); ++bucket) {
          ranges.push_back(arena_.range(bucket));
          most = std::max(most, ranges.back().bytes());
        }
        if (gradients_.first_bound()) {
          apart.emplace(communicator_.allocate_blocking(most, Deadline::after(context_.timeout)));
          for (BufferView& range : ranges)
            range.data = apart->data();
        }
        work.connect(ranges, op_, communicator_, copier_.stream());
      }
    }
    wait_for_loads();
  }

  /// Blocking: until the work that uses the arena has ended. Aborts that work at the deadline, or at once if `now`.
  /// @returns false if the work has not ended within 5 s after the abort: this object must outlive such work
  bool end(bool now, const Cause& cause, Deadline deadline) {
    stop_launching();
    if (!now && copier_.block_until_idle(deadline)) return true;
    communicator_.abort(cause);
    return copier_.block_until_idle(Deadline::after(std::chrono::seconds(5)));
  }

 private:
  /// A function that waits for an event, and throws if the job fails.
  auto waiting() {
    return [this](typename Stream::Event& event) { wait_for_event(event); };
  }

  /// Blocking, on CUDA only: until the kernels that load others have run. They write numbers that the graph of a
  /// captured step writes, too, and the program's streams, which run the graph, do not wait for this stream.
  void wait_for_loads() {
    if constexpr (GradientCopier::copies_on_stream) copier_.synchronize(waiting());
  }

  /// Work of steps without an optimizer.
  StepWork<Communicator>& own_work() noexcept {
    if (hook_) return *hook_;
    return all_reduce_;
  }

  void plan_parts() {
    meter_.plan(plan());
    norms_.plan(plan(), copier_.stream());
    if (hook_) hook_->plan(communicator_, plan(), gradients_, Deadline::after(context_.timeout));
  }

  void wait_for_bucket(std::size_t bucket) override {
    if constexpr (!GradientCopier::copies_on_stream) wait_for_event(copier_.reduced(bucket));
  }
  void unpack() override { copier_.finish(waiting()); }
  void wait_for_producers() override { copier_.wait_for_producers(); }
  void wait_for_event(typename Stream::Event& event) override {
    backend::block_until_complete(event, communicator_, *context_.latch, context_.timeout, context_.rank);
  }

  /// The gradient with what passes under no_sync() have left of it; its digest is taken.
  DTRAIN_NOT_INLINED const std::byte* summed_and_checked(std::size_t parameter, const std::byte* gradient) noexcept {
    const GradientSlot& slot = gradients_[parameter];
    const std::byte* const sum = sums_.has(parameter) ? sums_.add(parameter, gradient) : gradient;
    const bool is_own = gradient == slot.own && gradient != nullptr && !plan().reuses_memory;
    if (check_.is_on() && (slot.is_bound() || is_own)) check_.take(parameter, slot.is_bound() ? sum : gradient);
    return sum;
  }

  void mark_gradient_ready(std::size_t parameter) {
    pending_.mark_gradient_ready(
        plan().bucket_of[parameter], [this](std::size_t bucket) { complete(bucket); },
        [this](std::size_t bucket) { launch(bucket); });
  }

  /// Called under PendingBuckets' mutex, as launch().
  void complete([[maybe_unused]] std::size_t bucket) {
    if constexpr (GradientCopier::copies_on_stream) copier_.complete(bucket);
  }

  /// Called under PendingBuckets' mutex: only one thread enqueues at a time.
  void launch(std::size_t bucket) {
    meter_.launched(bucket);
    const bool is_hook = hook_ && work_ == &*hook_;  // a hook may write gradients at once, in launch()
    if (check_.is_on()) check_.before_collective(plan().buckets[bucket].parameters, copier_.stream(), is_hook);
    work_->prepare(bucket);
    if (finite_.is_on()) {
      finite_.before_collective(plan().buckets[bucket].parameters, arena_.range(bucket), copier_.stream(), is_hook);
    }
    copier_.before_collective(bucket);
    work_->launch(bucket, arena_.range(bucket), op_, communicator_, copier_.stream());
    if (bucket + 1 == arena_.buckets()) {
      if (on_all_gradients_ready_) on_all_gradients_ready_();
      buffers_.launch(communicator_, copier_);  // the stream now has waited for all producers of the step
    }
    if (check_.is_on() && work_ == &own_work()) {
      check_.after_collective(plan().buckets[bucket].parameters, copier_.stream());
    }
    copier_.after_collective(bucket, unpacks_);
  }

  Communicator communicator_;
  ReduceOp op_;  ///< reduction of the collectives
  const FailureContext& context_;
  std::vector<GradientSize> sizes_;
  GradientArena<Communicator> arena_;
  GradientTable& gradients_ = arena_.gradients();
  BufferBroadcast<Communicator> buffers_;
  PendingBuckets pending_;
  StepMeter meter_;
  Norms norms_;
  GradientCopier copier_;
  ReadyCheck check_;
  FiniteCheck finite_;
  GradientSums sums_;
  StepOptions step_;             ///< the open step's
  bool unpacks_ = true;          ///< StepNeeds::unpacks of the open step
  bool sums_or_checks_ = false;  ///< whether this step does either: one look for each gradient
  AllReduceWork<Communicator> all_reduce_;
  std::optional<HookWork<Communicator>> hook_;
  StepWork<Communicator>* work_ = &all_reduce_;  ///< this step's work; between steps the hook's or all_reduce_
  std::function<void()> on_all_gradients_ready_;
};

template <backend::Communicator Communicator>
BucketReduction<Communicator>::~BucketReduction() = default;  // here, so that a program gets it from its instance

}  // namespace DTRAIN_NAMESPACE::ddp
