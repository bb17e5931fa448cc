#pragma once
/// @file
/// BucketUpdate: interface of what a step does with full buckets instead of an all-reduce; ShardedReduction implements
/// it.

#include <array>
#include <cstddef>
#include <optional>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Why a step takes no BucketUpdate, or none but one.
enum class UpdateProblem { hook, other_wrapper, no_sync, whole_gradients, missing, no_memory };

/// BucketReduction calls begin, then pack for each gradient if the plan reuses memory, launch for each bucket of a
/// step, in their order, and then finish. Errors: an exception ends the job, as one of the backward pass does.
/// Lifetime: outlives the step's work.
template <backend::Communicator C>
class BucketUpdate {
 public:
  using Stream = typename C::Stream;

  /// How it waits. Blocking; both throw if the job fails. Threads: any.
  struct Waits {
    virtual void for_bucket(std::size_t bucket) = 0;  ///< until the work that launch enqueued has run
    virtual void for_event(typename Stream::Event& event) = 0;

   protected:
    ~Waits() = default;
  };

  /// Whether it was not made for buckets of this plan, in this memory.
  virtual std::optional<UpdateProblem> problem_with(const BucketPlan& plan) const noexcept = 0;

  /// Begins a step. Lifetime: `waits` outlive it.
  virtual void begin(Waits& waits) = 0;

  /// Copies a gradient to its place, once the memory there is free, or keeps a copy until then. Blocking: until work
  /// of earlier buckets has run. Threads: any, concurrently for different parameters.
  /// @param gradient null: zeros
  virtual void pack(std::size_t parameter, const std::byte* gradient, const GradientSlot& slot) = 0;

  /// Enqueues the work of a bucket, all of whose gradients are in `range` or were packed. Blocking: for packed ones,
  /// until their memory is free. Threads: one at a time.
  virtual void launch(std::size_t bucket, const BufferView& range, ReduceOp op, C& channel, Stream stream) = 0;

  /// Collective, blocking: the rest of the step. All buckets are launched.
  virtual void finish(C& channel, Stream stream) = 0;

  /// Whether finish leaves the model's values to wait_for.
  virtual bool overlaps_forward() const noexcept = 0;

  /// Blocking: until the model has the new values of a bucket, after finish.
  virtual void wait_for(std::size_t bucket) = 0;

 protected:
  ~BucketUpdate() = default;
};

/// State of a reducer, for an update that may outlive it.
struct ReducerLifetime {
  bool has_ended = false;
  bool leaves_work = false;  ///< which may still use the update
};

/// The update of a step that has ended before the model had its new values; or none.
template <class C>
class OpenUpdate {
 public:
  void set(BucketUpdate<C>& update) noexcept { update_ = update.overlaps_forward() ? &update : nullptr; }
  void drop() noexcept { update_ = nullptr; }
  bool is_some() const noexcept { return update_ != nullptr; }
  bool is(const BucketUpdate<C>& update) const noexcept { return update_ == &update; }

  /// Blocking: for the values of a parameter, or of all; then there is none. Does nothing if there is none.
  void wait_for(std::optional<std::size_t> parameter, const BucketPlan& plan) {
    if (update_ != nullptr && parameter) return update_->wait_for(plan.bucket_of[*parameter]);
    for (std::size_t bucket = 0; update_ != nullptr && bucket < plan.buckets.size(); ++bucket) {
      update_->wait_for(bucket);
    }
    update_ = nullptr;
  }

 private:
  BucketUpdate<C>* update_ = nullptr;
};

/// @throws Error (invalid_argument) @param caller the user's call
[[noreturn]] void refuse_update(const char* caller, UpdateProblem problem);

/// @param update null: a step without
/// @throws Error (invalid_argument) for the update of another plan, or beside a hook, or none where the plan needs one
/// or the model's gradients have no memory
template <class C>
void require_usable(const BucketUpdate<C>* update, const BucketPlan& plan, const GradientTable& gradients,
                    bool has_hook, const char* caller) {
  if (update == nullptr) {
    if (plan.reuses_memory) refuse_update(caller, UpdateProblem::missing);
    if (!gradients.have_memory()) refuse_update(caller, UpdateProblem::no_memory);
    return;
  }
  if (has_hook) refuse_update(caller, UpdateProblem::hook);
  if (const std::optional<UpdateProblem> problem = update->problem_with(plan)) refuse_update(caller, *problem);
}

#if DTRAIN_DEFINITIONS

DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_update(const char* caller, UpdateProblem problem) {
  constexpr std::array<const char*, 6> sentences{
      "a ShardedOptimizer, but a gradient hook reduces the buckets; construct DistributedDataParallel without the hook",
      "a ShardedOptimizer, but that of another DistributedDataParallel; give the one that was constructed from this",
      "a ShardedOptimizer, but under no_sync(), where steps reduce nothing; call backward(f), and give the optimizer "
      "to the step after it",
      "a ShardedOptimizer that needs the memory of all gradients, but another one, with zero::Gradients, has left none "
      "for them; give that",
      "no ShardedOptimizer, but one with zero::Gradients has left no memory for all gradients; give it to each step "
      "that reduces",
      "no ShardedOptimizer, but the model's gradients have no memory for the reduced ones; allocate it, give the model "
      "bind_gradient(i, view), or give a ShardedOptimizer to each step"};
  throw_error(Errc::invalid_argument, "{} got {}", {caller, sentences[static_cast<std::size_t>(problem)]});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
