#pragma once
/// @file
/// DdpOptions: options of DistributedDataParallel, most of them equal on every rank. PlanChoice: bucket sizes as given,
/// or from measured first steps.

#include <cstddef>
#include <memory>
#include <optional>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/stream/host/progress.hpp"

namespace DTRAIN_NAMESPACE::ddp {

class BucketPlanner;
struct PlannerSetup;

/// A planner that measures; see measured_plan.hpp. @throws Error (invalid_argument) with DdpOptions::deterministic,
/// (unsupported) for gradients that are not in host memory
std::shared_ptr<BucketPlanner> make_measured_plan(const PlannerSetup& setup);

/// Whether buckets have the sizes in DdpOptions, or sizes chosen from measurements of the first steps.
/// The choice has the function that makes its planner: a program that measures nothing has no code for it.
/// @ingroup training
class PlanChoice {
 public:
  using Make = std::shared_ptr<BucketPlanner> (*)(const PlannerSetup&);

  /// Buckets of the sizes in DdpOptions, reduced as the policy and GroupOptions say.
  constexpr PlanChoice() noexcept = default;

  /// The sizes, and of a policy with several ways the way, with the shortest step by the measurements of the first
  /// steps. DdpOptions::plan has the conditions.
  static constexpr PlanChoice measured() noexcept {
    PlanChoice choice;
    choice.make_ = &make_measured_plan;
    return choice;
  }

  constexpr bool is_measured() const noexcept { return make_ != nullptr; }
  /// Null unless is_measured().
  constexpr Make make() const noexcept { return make_; }

 private:
  Make make_ = nullptr;
};

/// Answer to a gradient with an element that is infinite or NaN. The ranks' sum hides which rank it comes from; the
/// sentence names that rank, the parameter, the element, and whether the weights were finite.
/// @ingroup training
enum class OnNotFinite {
  /// The job's log has the sentence, once until 100 steps have been finite. Steps with a loss scaler, whose search
  /// for a scale makes such gradients, are told of when the scale is at most 1, or the eighth time in a row.
  log,
  fail,    ///< finish() of that rank throws it (Errc::not_finite), with or without a loss scaler
  ignore,  ///< nothing is read
};

/// Options of DistributedDataParallel, equal on every rank, except for `timeline`, `device_times`, `check_addresses`,
/// `check_ready`, `on_not_finite`, `progress` and `producer_stream`. A difference is an error on all ranks.
/// @ingroup training
struct DdpOptions {
  std::size_t bucket_bytes = BucketCaps{}.bucket_bytes;              ///< 0: a bucket for each parameter
  std::size_t first_bucket_bytes = BucketCaps{}.first_bucket_bytes;  ///< bucket_bytes bounds it
  /// Or sum. A loss that is summed over the samples, and not averaged, takes the sum: the average of the ranks' sums
  /// would be the sum over all samples divided by the ranks.
  ReduceOp reduce_op = ReduceOp::average;
  Accumulate accumulate = Accumulate::element;  ///< f32 for f16 and bf16, even if GroupOptions do not request it
  /// Keeps the first bucket plan, so that every run with the same model, options, ranks and nodes gives the same bits.
  /// A backend that does not promise the same bits (backend::Determinism) is rejected.
  bool deterministic = false;
  /// Rebuilds the buckets at the end of the first step, in rank 0's ready order. The rebuild may move bound gradients,
  /// with their content. Has no effect with `deterministic`, or if the first step is captured in a CUDA graph.
  bool reorder_gradients = true;
  /// PlanChoice::measured(): the first 29 steps measure, and choose the items below, equally on every rank; log level
  /// info has the reasons. If a step with the chosen plan is not shorter, the given plan returns.
  /// - The sizes of buckets, in place of the two members above.
  /// - With topology::Hierarchical on several hosts, one of them with several ranks: Hierarchical or Flat. With a wire
  ///   type also 16 bits or f32. The policy's variant stays unless another one is expected to shorten the
  ///   step by more than 1%. Each further variant takes two steps more. Only all_reduce changes, also in hooks.
  /// For gradients in host memory, and not with `deterministic`. Steps under no_sync() do not count. Bits may differ
  /// from run to run where a sum's bits depend on the choice (see backend::Determinism). In a model of several element
  /// types, bound gradients may move up to eight times. If a program has other wrappers too, every rank must finish
  /// their steps in one order.
  PlanChoice plan{};
  /// A parameter without ready() in a step contributes zeros on that rank, or the gradient that steps under no_sync()
  /// have left since the last reduced step. Without this option, finish() names such parameters in an error. Unused
  /// parameters are detected in finish(): if a program has several such wrappers, every rank must finish their steps in
  /// the same order. With this option, streams passed to ready() on CUDA must outlive the wrapper.
  bool allow_unused_parameters = false;
  /// Each step broadcasts rank 0's buffers, if the model has buffers(). The program leaves them untouched from the last
  /// ready() to finish(). A hook may leave each rank its own buffers in some steps, as hooks::LocalSgd in local steps.
  bool broadcast_buffers = true;
  /// Reads parameters() again at the beginning and at the end of a step, to detect values and gradients that have moved
  /// since the construction. True: in every step; false: in the first two and every 64th; not set: in every step with
  /// at most 1,000 parameters, or if the readings take less than 1 us a parameter and step, else as false.
  std::optional<bool> check_addresses{};
  /// True: compares each gradient in finish() with what ready() took; a gradient that is written after its ready(), as
  /// by a callback that comes too early, is an error. A bound gradient is compared until its bucket's collective
  /// begins, and from its end on. For gradients in host memory; each takes two to four readings. Not set: compares in
  /// programs with a file that was compiled without NDEBUG. Each step then reads all of a gradient of at most 4 KiB,
  /// and a 64th of a larger one: 64 steps read all of it. A bound gradient is an error then; any other is a warning in
  /// the log, once, because the program may use its memory for something else after ready(). False: compares nothing.
  std::optional<bool> check_ready{};
  /// Gradients in host memory are read before they are reduced: of the first 20 steps, and then as often as it takes at
  /// most 0.3% of the time of steps, each 64th step at least; with OnNotFinite::fail in every step. Floats of 16 bits
  /// and more.
  OnNotFinite on_not_finite = OnNotFinite::log;
  /// Also records every ready(), and on CUDA the times at which the device started and finished each bucket, which
  /// costs some microseconds a bucket. Keeps records of more steps.
  bool timeline = false;
  /// On CUDA, statistics() has the time of communication and the part of it that backward hid, measured by events that
  /// cost some microseconds a bucket. `timeline` implies this option; on host streams it is always on.
  bool device_times = false;
  /// On CUDA: the stream that wrote values, gradients and buffers before the construction. The default is the device's
  /// default stream, which also covers all streams that were not created as non-blocking.
  StreamHandle producer_stream{};
  stream::host::Progress progress = stream::host::Progress::automatic;  ///< the thread that runs the communication

  BucketCaps caps() const noexcept { return {first_bucket_bytes, bucket_bytes}; }
};

/// @throws Error (invalid_argument).
void check_options(const DdpOptions& options);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void check_options(const DdpOptions& options) {
  if (options.reduce_op != ReduceOp::average && options.reduce_op != ReduceOp::sum) {
    throw_error(Errc::invalid_argument, "DdpOptions::reduce_op is {}; gradients are combined by average or sum",
                {name(options.reduce_op)});
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::DdpOptions;
using ddp::OnNotFinite;
using ddp::PlanChoice;
}  // namespace DTRAIN_NAMESPACE
