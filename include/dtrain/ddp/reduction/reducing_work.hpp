#pragma once
/// @file
/// AllReduceWork, HookWork of a BucketReduction: StepWork that reduces the gradients by all-reduce or hook, and
/// measures their norm.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/compressed_traffic.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/reduction/gradient_copier.hpp"
#include "dtrain/ddp/step_work.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// @throws Error (invalid_argument) if gradients have no memory in which they could be reduced for the model
void require_reducible(const BucketPlan& plan, const GradientTable& gradients, const char* caller);

/// The common part of AllReduceWork and HookWork. Lifetime: the norms outlive the object.
template <backend::Communicator C>
class ReducingWork : public StepWork<C> {
 public:
  using Stream = typename C::Stream;
  using Norms = BucketNormsFor<Stream>;
  using Buckets = typename StepWork<C>::Buckets;

  explicit ReducingWork(Norms& norms) noexcept : norms_(&norms) {}

  void require_usable(const BucketPlan& plan, const GradientTable& gradients, const char* caller) const final {
    require_reducible(plan, gradients, caller);
  }
  bool is_for_model() const noexcept final { return true; }
  /// Not called: gradients have their memory.
  void pack(std::size_t, const std::byte*, const GradientSlot&) final {}
  bool finish(C&, Stream) override {
    buckets_->unpack();
    return true;
  }

 protected:
  ~ReducingWork() = default;

  void set_buckets(Buckets& buckets) noexcept { buckets_ = &buckets; }

  /// Address for the bucket's sum of squares; null if the step does not measure the norm.
  double* sum_of(std::size_t bucket) noexcept { return norms_->sum_of(bucket); }

  /// Enqueues the sum of a reduced bucket. @param sum null: does nothing
  void measure([[maybe_unused]] double* sum, [[maybe_unused]] const BufferView& range, [[maybe_unused]] Stream stream) {
    if constexpr (can_measure_norms<Stream>) {
      if (sum != nullptr) norms_->enqueue(sum, range, stream);
    }
  }

 private:
  Norms* norms_;
  Buckets* buckets_ = nullptr;
};

/// An all-reduce of each bucket.
template <backend::Communicator C>
class AllReduceWork final : public ReducingWork<C> {
 public:
  using typename ReducingWork<C>::Stream;
  using typename ReducingWork<C>::Buckets;
  using ReducingWork<C>::ReducingWork;

  StepNeeds begin(Buckets& buckets, const StepOptions&) override {
    this->set_buckets(buckets);
    return {.items_per_bucket = 2};  // the all-reduce, and the sum of squares
  }

  void launch(std::size_t bucket, const BufferView& range, ReduceOp op, C& channel, Stream stream) override {
    if (range.count == 0) return;
    double* squares = this->sum_of(bucket);
    if constexpr (backend::CanSumSquares<C>) {
      channel.enqueue(backend::AllReduceWithSquares{{range, range, op}, std::exchange(squares, nullptr)}, stream);
    } else {
      channel.enqueue(backend::AllReduce{range, range, op}, stream);
    }
    this->measure(squares, range, stream);
  }

  /// Enqueues what launch() enqueues on the channel, on zeros.
  void connect(const BufferView& zeros, ReduceOp op, C& channel, Stream stream) {
    channel.enqueue(backend::AllReduce{zeros, zeros, op}, stream);
  }
};

/// The gradients of each bucket, where they lie in the arena.
std::vector<std::vector<BucketGradient>> bucket_gradients(const BucketPlan& plan, const GradientTable& table);

/// @returns `wanted` of a hook's items_per_bucket. @throws Error (limit) if it is beyond what a stream makes room for
std::uint64_t allowed_items(std::uint64_t wanted);

/// @throws Error (limit): a hook enqueued more work items for a bucket than it said
[[noreturn]] void refuse_items(std::size_t bucket, std::uint64_t enqueued, std::uint64_t allowed);

/// A step in which the wrapper's hook reduces each bucket; the bytes that the hook sends are counted. Threads: as
/// GradientHook.
template <backend::Communicator C>
class HookWork final : public ReducingWork<C> {
 public:
  using typename ReducingWork<C>::Stream;
  using typename ReducingWork<C>::Norms;
  using typename ReducingWork<C>::Buckets;

  /// Calls hook.prepare. @pre hook.reduce is not empty
  HookWork(HookFunctions<C> hook, std::span<const Parameter> parameters, std::span<const TensorView> buffers,
           Norms& norms)
      : ReducingWork<C>(norms), hook_(std::move(hook)) {
    if (hook_.prepare) hook_.prepare(parameters, buffers);
  }

  StepNeeds begin(Buckets& buckets, const StepOptions&) override {
    this->set_buckets(buckets);
    return {.items_per_bucket = items_ + 1,  // and the sum of squares
            .skips_buffer_broadcast = hook_.skips_buffer_broadcast && hook_.skips_buffer_broadcast()};
  }

  /// Sets the buckets. Collective, blocking if the hook is. Between steps.
  void plan(C& channel, const BucketPlan& plan, const GradientTable& table, Deadline deadline) {
    gradients_ = bucket_gradients(plan, table);
    if (hook_.plan) hook_.plan(channel, plan, deadline);
    if (hook_.items_per_bucket) items_ = allowed_items(hook_.items_per_bucket(channel.size()));
  }

  void launch(std::size_t bucket, const BufferView& range, ReduceOp op, C& channel, Stream stream) override {
    if (range.count == 0) return;
    TrafficCounter* const counter = channel.size() > 1 ? &traffic_ : nullptr;  // one rank alone sends nothing
    if (counter != nullptr) counter->replaces(range.bytes());
    const std::uint64_t before = enqueued_items(stream);
    hook_.reduce({range, gradients_[bucket], {channel, counter}, stream, op});
    const std::uint64_t enqueued = enqueued_items(stream) - before;
    if (enqueued > items_) refuse_items(bucket, enqueued, items_);
    this->measure(this->sum_of(bucket), range, stream);
  }

  /// Enqueues the hook's collectives for a bucket of zeros; without a hook.connect a sum, as most of them are.
  void connect(const BufferView& zeros, ReduceOp op, C& channel, Stream stream) {
    if (hook_.connect) {
      hook_.connect({zeros, {}, {channel}, stream, op});
    } else {
      channel.enqueue(backend::AllReduce{zeros, zeros, ReduceOp::sum}, stream);
    }
  }

  CompressedTraffic traffic() const noexcept { return traffic_.total(); }

 private:
  /// 0 for a stream whose queue does not run full.
  static std::uint64_t enqueued_items([[maybe_unused]] Stream stream) noexcept {
    if constexpr (requires { stream.enqueued_items(); }) return stream.enqueued_items();
    return 0;
  }

  HookFunctions<C> hook_;
  std::uint64_t items_ = default_hook_items;
  std::vector<std::vector<BucketGradient>> gradients_;  ///< gradients of each bucket
  TrafficCounter traffic_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void require_reducible(const BucketPlan& plan, const GradientTable& gradients, const char* caller) {
  if (plan.reuses_memory) {
    refuse_work(caller,
                "no ShardedOptimizer, but one of stage 2 has left no memory for all gradients; give it to "
                "each step that reduces");
  }
  if (!gradients.have_memory()) {
    refuse_work(caller,
                "no ShardedOptimizer, but the model's gradients have no memory for the reduced ones; allocate it, give "
                "the model bind_gradient(i, view), or give a ShardedOptimizer to each step");
  }
}

DTRAIN_DEFINED std::vector<std::vector<BucketGradient>> bucket_gradients(const BucketPlan& plan,
                                                                         const GradientTable& table) {
  std::vector<std::vector<BucketGradient>> buckets;
  for (const PlannedBucket& bucket : plan.buckets) {
    std::vector<BucketGradient>& gradients = buckets.emplace_back();
    for (const std::size_t parameter : bucket.parameters) {
      TensorView view = table.view(parameter);
      view.data = table[parameter].place;
      gradients.push_back({parameter, view});
    }
  }
  return buckets;
}

DTRAIN_DEFINED std::uint64_t allowed_items(std::uint64_t wanted) {
  constexpr std::uint64_t most = 4096;
  if (wanted > most) {
    throw_error(Errc::limit,
                "a gradient hook's items_per_bucket(ranks) returned {}, but a stream has room for {} work items of a "
                "bucket at most; let an item do more",
                {wanted, most});
  }
  return wanted;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_items(std::size_t bucket, std::uint64_t enqueued, std::uint64_t allowed) {
  throw_error(Errc::limit,
              "the gradient hook enqueued {} work items for bucket {}, which has room for {}; let its member "
              "items_per_bucket(ranks) return the largest number for a bucket",
              {enqueued, bucket, allowed});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
