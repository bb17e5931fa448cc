#pragma once
/// @file
/// StepWork: interface of a step's work on each full bucket: all-reduce, hook, or sharded update.

#include <cstddef>
#include <cstdint>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/step_options.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Needs of a step, by its work.
struct StepNeeds {
  /// The largest number of work items that launch enqueues for a bucket. The stream has room for this number in each
  /// bucket, so that ready() never runs work. A host stream runs work in a thread that finds its queue full.
  std::uint64_t items_per_bucket = 0;
  bool unpacks = true;                  ///< whether the model gets the reduced gradients of a bucket after launch
  bool skips_buffer_broadcast = false;  ///< whether each rank keeps its own buffers; equal on all ranks
};

/// BucketReduction calls begin; pack for each gradient if the plan reuses memory; launch for each bucket of a step, in
/// the order of the buckets; and finish. Errors: an exception ends the job, as an exception of the backward pass does.
/// Lifetime: the object outlives the step's work.
template <backend::Communicator C>
class StepWork {
 public:
  using Stream = typename C::Stream;

  /// The step's buckets, as BucketReduction has them. Blocking; all throw if the job fails. Threads: any.
  struct Buckets {
    virtual void wait_for_bucket(std::size_t bucket) = 0;  ///< returns when the work that launch enqueued has run
    virtual void wait_for_event(typename Stream::Event& event) = 0;
    virtual void unpack() = 0;  ///< copies gradients to the model once their bucket's work has run; on CUDA enqueues it
    virtual void wait_for_producers() {}  ///< enqueued, on CUDA: later work runs after all of the gradients' streams

   protected:
    ~Buckets() = default;
  };

  /// @throws Error (invalid_argument) if the work cannot take the buckets of this plan. @param caller the user's call
  virtual void require_usable(const BucketPlan& plan, const GradientTable& gradients, const char* caller) const = 0;

  /// Whether the model gets the reduced gradients, as without work of an optimizer.
  virtual bool is_for_model() const noexcept { return false; }

  /// Begins a step. Lifetime: both outlive the step.
  virtual StepNeeds begin(Buckets& buckets, const StepOptions& options) = 0;

  /// Not on CUDA, where the gradient copier does it. Copies a gradient to its place, once the memory there is free, or
  /// keeps a copy until then. Blocking: until work of earlier buckets has run. Threads: any, concurrently for different
  /// parameters.
  /// @param gradient null: zeros
  virtual void pack(std::size_t parameter, const std::byte* gradient, const GradientSlot& slot) = 0;

  /// Before launch(): puts the bucket's packed gradients into its range. Blocking: until their memory is free.
  virtual void prepare([[maybe_unused]] std::size_t bucket) {}

  /// Enqueues the work of a bucket, all of whose gradients are in `range`. Threads: one at a time.
  virtual void launch(std::size_t bucket, const BufferView& range, ReduceOp op, C& channel, Stream stream) = 0;

  /// Collective, blocking: ends the step. @pre all buckets are launched @returns as Step::finish
  virtual bool finish(C& channel, Stream stream) = 0;

 protected:
  ~StepWork() = default;
};

/// State of a reducer, for work of its steps that may outlive it.
struct ReducerLifetime {
  bool has_ended = false;
  bool leaves_work = false;   ///< whether a stream may still run such work
  bool is_step_open = false;  ///< stays true after a step that failed
};

/// @throws Error (invalid_argument): the user's call `caller` "got WHAT", which says what to do
[[noreturn]] void refuse_work(const char* caller, const char* what);

#if DTRAIN_DEFINITIONS

DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_work(const char* caller, const char* what) {
  throw_error(Errc::invalid_argument, "{} got {}", {caller, what});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
