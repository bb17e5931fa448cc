#pragma once
/// @file
/// BucketUpdate: what a step does with its buckets in place of reducing them for the model.

#include <array>
#include <cstddef>
#include <functional>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/bucket_plan.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// BucketReduction calls launch for each bucket of a step, in their order, and then finish. Errors: an exception ends
/// the job, as one of the backward pass does. Lifetime: outlives the step's work.
template <backend::Communicator C>
class BucketUpdate {
 public:
  using Stream = typename C::Stream;

  /// How finish waits. Blocking; both throw if the job fails.
  struct Waits {
    std::function<void(std::size_t bucket)> for_bucket;  ///< until the work that launch enqueued has run
    std::function<void(typename Stream::Event&)> for_event;
  };

  /// Whether it was made for buckets of this plan.
  virtual bool is_for(const BucketPlan& plan) const noexcept = 0;

  /// Enqueues the work of a bucket, all of whose gradients are in `range`. Blocking: no. Threads: one at a time.
  virtual void launch(std::size_t bucket, const BufferView& range, ReduceOp op, C& channel, Stream stream) = 0;

  /// Collective, blocking: the rest of the step. All buckets are launched.
  virtual void finish(C& channel, Stream stream, const Waits& waits) = 0;

 protected:
  ~BucketUpdate() = default;
};

/// Why a step takes no BucketUpdate.
enum class UpdateProblem { hook, other_wrapper, no_sync };

/// @throws Error (invalid_argument) @param caller the user's call
[[noreturn]] void refuse_update(const char* caller, UpdateProblem problem);

/// @throws Error (invalid_argument) for the update of another plan, or beside a hook
template <class C>
void require_usable(const BucketUpdate<C>& update, const BucketPlan& plan, bool has_hook, const char* caller) {
  if (has_hook) refuse_update(caller, UpdateProblem::hook);
  if (!update.is_for(plan)) refuse_update(caller, UpdateProblem::other_wrapper);
}

#if DTRAIN_DEFINITIONS

DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_update(const char* caller, UpdateProblem problem) {
  constexpr std::array<const char*, 3> sentences{
      "but a gradient hook reduces the buckets; construct DistributedDataParallel without the hook",
      "but that of another DistributedDataParallel; give the one that was constructed from this",
      "but under no_sync(), where steps reduce nothing; call backward(f), and give the optimizer to the step after it"};
  throw_error(Errc::invalid_argument, "{} got a ShardedOptimizer, {}",
              {caller, sentences[static_cast<std::size_t>(problem)]});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
