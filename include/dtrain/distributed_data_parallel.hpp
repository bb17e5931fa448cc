#pragma once
/// @file
/// dtrain::DistributedDataParallel: a program's wrapper of its model, which averages gradients over the ranks during
/// the backward pass.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/data/sample_steps.hpp"
#include "dtrain/ddp/data/zero_gradients.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/driver_access.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/micro_batches/micro_batch_steps.hpp"
#include "dtrain/ddp/model.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/planning/bucket_planner.hpp"
#include "dtrain/ddp/precision/gradient_norm.hpp"
#include "dtrain/ddp/profile/reducer_statistics.hpp"
#include "dtrain/ddp/profile/step_record.hpp"
#include "dtrain/ddp/ready.hpp"
#include "dtrain/ddp/reduction/accumulation.hpp"
#include "dtrain/ddp/reduction/gradient_copier.hpp"
#include "dtrain/ddp/setup/driver.hpp"
#include "dtrain/ddp/shared_memory_instances.hpp"
#include "dtrain/ddp/step.hpp"
#include "dtrain/ddp/step_work.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/process_group.hpp"

namespace DTRAIN_NAMESPACE {

template <class R, class C>
class ShardedOptimizer;

/// Wraps a model and averages its gradients over the ranks while the backward pass runs:
/// `DistributedDataParallel ddp{model, group}`, or `ddp{list, group}` with a std::vector or std::span of Parameter. In
/// a member a wrapper of a list has the type DistributedDataParallel<ParameterList, P>.
///
/// Lifetime: borrows the model, whose parameters keep their addresses (DdpOptions::check_addresses); keeps the group.
/// Copies a list, which may be a temporary, and borrows the tensors that the list names: they outlive this object and
/// keep their addresses, which dtrain does not check.
/// Gradients that the model binds (bind_gradient) lie in this object's memory: the model must not use them after the
/// wrapper's destruction, unless gradient_memory() is kept. Such a model is in one wrapper at a time.
/// Threads: one thread drives the steps; `ready` of a step may be called from any thread.
///
/// On CUDA every `ready` names the stream that produces the gradient. finish() makes this stream wait for the reduction
/// and returns without blocking: later work on the stream (the optimizer) reads reduced gradients. From ready() to
/// finish() nothing else touches a gradient's memory. A step from begin() to finish() may be captured in a CUDA graph,
/// which is destroyed before this object.
/// @ingroup training
template <class M, class P>
class DistributedDataParallel {
  using Backend = typename P::ChannelBackend;
  using Communicator = typename Backend::Communicator;
  static constexpr bool has_device_norm = requires(const ddp::BucketNormsFor<typename Communicator::Stream>& norms) {
    norms.found_inf();
  };

 public:
  /// A ShardedOptimizer of this wrapper, as the type of a member: `typename Ddp::template Sharded<Rule>`.
  template <class Rule>
  using Sharded = ShardedOptimizer<Rule, Communicator>;

  static constexpr bool is_complete = ddp::IsComplete<M>;  // no further explanation by the compiler
  static_assert(is_complete,
                "dtrain: the model's class is not complete here, as it holds its own wrapper: let it hold a "
                "std::unique_ptr to the wrapper, declared after its tensors, or wrap the list of its parameters in a "
                "DistributedDataParallel<dtrain::ParameterList, Policy>");
  static_assert(!std::is_const_v<M> || ddp::Model<M> || !ddp::Model<std::remove_const_t<M>>,
                "dtrain: the model is const and its parameters() is not: give a model that is not const");
  static_assert(ddp::Model<M> || ddp::IsParameterList<M> || !is_complete || ddp::Model<std::remove_const_t<M>>,
                "dtrain: Model needs parameters(): a sized range of dtrain::Parameter "
                "(contract: the concept ddp::Model, in dtrain/ddp/model.hpp)");
  static_assert(ddp::IsParameterList<M> || ddp::device_kind_of<M> == DeviceKind::cuda ||
                    P::ChannelBackend::supports(DeviceKind::host),
                "dtrain: this backend reduces on GPUs only and the model is on the host: a model on a GPU says "
                "'static constexpr dtrain::DeviceKind device_kind = dtrain::DeviceKind::cuda;' "
                "(ddp::device_kind_of in dtrain/ddp/model.hpp)");
  static_assert(ddp::device_kind_of<M> == DeviceKind::host || P::ChannelBackend::supports(DeviceKind::cuda),
                "dtrain: the model's device_kind is cuda and this backend reduces host memory only: use backend::Nccl, "
                "or backend::Staged around this backend");

  /// Collective, blocking: opens a channel, checks that all ranks have the same model, broadcasts rank 0's values and
  /// buffers, plans the buckets, and binds the gradients if the model supports it.
  /// @throws Error (disagreement) or JobFailed on every rank if two models differ: the first difference and both ranks;
  /// Error (invalid_argument) for parameters that cannot be trained, or a model that another wrapper has bound;
  /// (unsupported) for a device or an element type that the backend does not reduce, and for DdpOptions::deterministic
  /// with a backend that does not promise the same bits; the job's first cause.
  /// @param hook reduces the buckets (ddp/hooks/gradient_hook.hpp): an rvalue, which this object keeps; or
  /// std::ref(hook), a variable whose members, such as hook.state(group), stay in use. Lifetime: this object borrows
  /// the variable of std::ref(hook), which outlives it.
  template <class H = ddp::HookFunctions<Communicator>>
  DistributedDataParallel(M& model, ProcessGroup<P> group, DdpOptions options = {}, H&& hook = {})
      : group_(std::move(group)), driver_(make_process_owned<Driver>(group::GroupAccess::of(group_))) {
    construct(model, options, std::forward<H>(hook));
  }
  template <class H = ddp::HookFunctions<Communicator>>
  requires ddp::IsParameterList<M> DistributedDataParallel(std::span<const Parameter> list, ProcessGroup<P> group,
                                                           DdpOptions options = {}, H&& hook = {})
      : group_(std::move(group)), driver_(make_process_owned<Driver>(group::GroupAccess::of(group_))) {
    construct(ParameterList(list.begin(), list.end()), options, std::forward<H>(hook));
  }

  DistributedDataParallel(M&&, ProcessGroup<P> group, DdpOptions = {}) requires(!ddp::IsParameterList<M>)
      : group_(std::move(group)) {
    static_assert(sizeof(M) == 0,
                  "dtrain: DistributedDataParallel borrows its model: give it a variable that outlives it");
  }

  DistributedDataParallel(DistributedDataParallel&&) noexcept = default;
  DistributedDataParallel& operator=(DistributedDataParallel&&) = delete;

  /// Blocking: on CUDA until the last step is reduced; else only if work of an unfinished step runs. While an exception
  /// unwinds, the group keeps the channel, so that the other ranks fail with the exception's text. Else, after a step,
  /// the destructor reads the model's values, in host memory, for a digest that the ranks compare in the background:
  /// rank 0 warns in the log if two ranks differ, or if they have given a DistributedSampler of the group different
  /// options, which the first step also compares, for samplers made before it; and after 10 steps, if no value has
  /// changed since the construction. Not if a value has moved (DdpOptions::check_addresses), with hooks::LocalSgd, in
  /// an elastic job, nor with DTRAIN_CHECK_VALUES=0.
  ~DistributedDataParallel() {
    if (!driver_) return;
    if (std::uncaught_exceptions() > exceptions_ || group::GroupAccess::of(group_).rank_context()->is_torn) {
      hand_over_to_group();
    } else {
      driver_->compare_values_at_end(group::GroupAccess::of(group_));
    }
  }

  /// Runs a step: `f(ready)` runs the backward pass and calls `ready` for every parameter; the step reduces all
  /// gradients, and does with them what `options` say. Collective, blocking as Step::finish. The first step also
  /// rebuilds the buckets (DdpOptions::reorder_gradients), and waits for the device. DdpOptions::plan may rebuild
  /// buckets after further steps. @returns as Step::finish: whether an optimizer is to update
  /// @throws the exception of `f`, after reporting its text to the job; as begin and Step::finish.
  template <class F>
  bool backward(F&& f, StepOptions options = {}) {
    require_pass<F>();
    if constexpr (std::invocable<F, Ready>) return run(std::forward<F>(f), begin("backward()", std::move(options)));
    return false;
  }

  /// Runs a step in which `optimizer` updates the model's values by the reduced gradients, which the model does not
  /// get; see ShardedOptimizer. @returns whether it has updated, as Step::finish
  template <class F, class R>
  bool backward(F&& f, ShardedOptimizer<R, Communicator>& optimizer, StepOptions options = {}) {
    require_pass<F>();
    if constexpr (std::invocable<F, Ready>) {
      return run(std::forward<F>(f), begin("backward()", optimizer, std::move(options)));
    }
    return false;
  }
  template <class F, class R, class X>
  requires(!std::convertible_to<X, StepOptions>) bool backward(F&&, ShardedOptimizer<R, Communicator>&, X&&) {
    static_assert(
        sizeof(X) == 0,
        "dtrain: the third argument of backward is a dtrain::StepOptions: {.clip_norm = 1.0, .scaler = &scaler, "
        ".inspect = function}");
    return false;
  }

  /// Runs a step whose reduced gradients, and so the weights, have the same bits on any number of ranks: `f(batch,
  /// ready)` computes a MicroBatch, and calls `ready` for every parameter with the gradient of the mean over the
  /// batch's samples (with ReduceOp::sum, of their sum). Each micro-batch is computed once, by some rank. dtrain clears
  /// the parameters' own gradients before each call, puts back the buffers of the step's beginning, and adds in the
  /// order of a fixed tree. `f` makes no call of dtrain but `ready`, which is valid until it returns; it may return the
  /// mean loss of its samples. Collective and blocking as backward(f). Threads: one at a time makes such steps. For
  /// gradients of f32 and f64 in host memory; the first step allocates a partial sum of all gradients for each doubling
  /// of a rank's micro-batches, and slices of the largest bucket.
  /// @returns the mean loss and whether an optimizer is to update; if `f` returns nothing, whether one is to
  /// @throws as backward(f); Error (unsupported) for other gradients; (invalid_argument) under no_sync() or with a hook
  template <class F>
  auto backward(const SampleStep& samples, F&& f, StepOptions options = {}) {
    static_assert(std::invocable<F&, const MicroBatch&, Ready>,
                  "dtrain: backward(step, f) calls f(batch, ready): write [&](const dtrain::MicroBatch& batch, "
                  "dtrain::Ready ready) { ... }, which calls ready(i) for each gradient");
    constexpr bool can_run =
        backend::CanExchangeBlocks<Communicator> && ddp::RunsHostWork<typename Communicator::Stream>;
    static_assert(can_run, "dtrain: steps over micro-batches need a backend of host memory: SharedMemory, Mpi or Gloo");
    if constexpr (std::invocable<F&, const MicroBatch&, Ready> && can_run) {
      using Steps = ddp::MicroBatchSteps<Communicator>;
      driver_->reducer->throw_if_unusable("backward()");
      ddp::require_samples(samples);
      if (!reduces() || driver_->wrapped->has_unreduced) {
        ddp::refuse_work("backward()",
                         "micro-batches under no_sync(), or after passes that no step has reduced; leave it out: a "
                         "micro-batch may have passes of its own, which the model adds up");
      }
      auto* steps = static_cast<Steps*>(driver_->micro_batch_steps.get());
      if (steps == nullptr || steps->micro_batches() != samples.micro_batches()) {
        const auto made = std::make_shared<Steps>(*driver_->reducer, driver_->present_parameters(), driver_->buffers,
                                                  samples.micro_batches());
        driver_->micro_batch_steps = made;
        steps = made.get();
      }
      Step step = begin(steps->work(), std::move(options));
      or_report([&] {
        const async::RefusedCalls refused(
            group::GroupAccess::of(group_).rank_context()->tasks.handle(),
            "a call of dtrain was made in the function of a step over micro-batches; make it before or after the step");
        steps->run_passes(samples, f, refused);
      });
      const MicroBatchLoss result = steps->finish(step);
      if constexpr (std::is_void_v<std::invoke_result_t<F&, const MicroBatch&, Ready>>) {
        return result.updates;
      } else {
        return result;
      }
    }
  }

  /// A step of a rank that has no samples, with zeros in place of its gradients; see dtrain::UnevenInputs. Collective
  /// and blocking as backward(). @throws Error (unsupported) for gradients on a device; (invalid_argument) if gradients
  /// of passes under no_sync() wait for a step; (unsupported) with hooks::LocalSgd; as backward()
  bool step_without_data(StepOptions options = {}) {
    return driver_->step_without_data(group::GroupAccess::of(group_), std::move(options));
  }
  template <class R>
  bool step_without_data(ShardedOptimizer<R, Communicator>& optimizer, StepOptions options = {}) {
    driver_->begin_without_data();
    const ddp::ZeroGradients zeros(driver_->parameters);
    return backward(zeros, optimizer, std::move(options));
  }

  /// Begins a step, for use without backward(): call `ready` on the step, and `finish` at the end. @throws the job's
  /// first cause; Error (invalid_argument) for options that do not fit; (unsupported) for options that need the norm on
  /// a GPU whose driver does not load the kernel for it.
  Step begin(StepOptions options = {}) {
    driver_->program_drives_steps = true;
    return begin("begin()", std::move(options));
  }

  /// Begins a step in which `optimizer` updates the model's values, in the step's finish(): backward() with an
  /// optimizer for libraries that call the program. Lifetime: `optimizer` outlives the step.
  template <class R>
  Step begin(ShardedOptimizer<R, Communicator>& optimizer, StepOptions options = {}) {
    driver_->program_drives_steps = true;
    return begin("begin()", optimizer, std::move(options));
  }

  /// Norm of the reduced gradients, equal on all ranks, after scaler, inspection and clipping of the step; also after a
  /// step with a ShardedOptimizer. Blocking, on CUDA only: until the step has run there. After a step that was captured
  /// in a graph it is the norm of the latest replay; the program waits for the replay before the call.
  /// @throws Error (invalid_argument) unless the latest step that reduced had options that need the norm.
  const GradientNorm& gradient_norm() const { return driver_->reducer->gradient_norm(); }

  /// Multiplies the reduced gradients by `factor`, rounded to their type, and gradient_norm(). On CUDA enqueued, before
  /// later work of the streams that ready() named, without a wait of the host; also in a capture of these streams.
  /// Blocking on CUDA only outside a capture after a step was captured: as gradient_norm, and until it has run.
  /// @throws as gradient_norm; Error (invalid_argument) after a step with a ShardedOptimizer or StepOptions::master
  void scale_gradients(double factor) { driver_->reducer->scale_gradients(factor); }

  /// Multiplies the reduced gradients by min(1, max_norm / (norm + 1e-6)), as StepOptions::clip_norm. On CUDA the
  /// device computes the factor: enqueued and blocking as scale_gradients. Afterwards gradient_norm() is that of the
  /// clipped gradients; its before_clipping is the norm before.
  /// @throws as scale_gradients; Error (invalid_argument) if `max_norm` is not positive
  void clip_gradients(double max_norm) {
    if (!(max_norm > 0)) {
      throw_error(Errc::invalid_argument, "clip_gradients has a max_norm of {}; give a positive one", {max_norm});
    }
    driver_->reducer->scale_gradients(1, max_norm);
  }

  /// On CUDA: the address of an f32 in device memory, 1 if the gradients of the last step that measured its norm are
  /// not finite on some rank, else 0. PyTorch's fused optimizers skip their update by such a found_inf. Valid for work
  /// that runs after the step, until this object is destroyed. Equal on all ranks.
  const float* found_inf() const noexcept requires(has_device_norm) { return driver_->reducer->norms().found_inf(); }

  /// View of gradient `parameter`, in range: after a step, the reduced values. A rebuild of the buckets moves the
  /// gradient.
  const TensorView& gradient(std::size_t parameter) const noexcept { return driver_->reducer->gradient(parameter); }

  /// Scope in which steps reduce nothing: backward passes add to this rank's own gradients, and the next step outside
  /// the scope reduces the sum. Every rank has the scope around the same steps. The divisor stays the number of ranks:
  /// for the mean over k passes, scale each loss by 1/k.
  /// @param adds Adds::wrapper for a model whose backward pass overwrites or clears its gradients: dtrain adds each
  /// pass to sums in further memory, as large as the gradients, which the first call allocates. A sum is rounded to the
  /// gradients' element type in each pass, also with Accumulate::f32. After such a pass the gradients in the
  /// parameters' own memory are zeros; ready(i, view) may also give a pass's gradient, which that memory has alone:
  /// dtrain does not clear it. A pass that an exception ends counts with the gradients that were ready. Passes that no
  /// step reduces, as where an epoch ends in the middle of a round, stay in the sums for the next step unless
  /// discard_accumulated() is called.
  /// @throws Error (invalid_argument) within a scope of the other choice; (unsupported) for Adds::wrapper on a GPU
  ddp::NoSync no_sync(Adds adds = Adds::model) {
    driver_->accumulation->use(adds, !reduces());
    return ddp::NoSync({driver_->wrapped, &driver_->wrapped->no_sync_depth});
  }

  /// Discards the passes under no_sync() that no step has reduced: the sums of Adds::wrapper. Gradients in the model's
  /// own memory stay; with Adds::model the program clears them. Every rank calls it between the same steps and passes;
  /// it sends nothing. @throws Error (invalid_argument) during a step that reduces; the job's first cause
  void discard_accumulated() {
    driver_->reducer->throw_if_unusable("discard_accumulated()");
    driver_->reducer->discard_accumulated();
    driver_->wrapped->has_unreduced = false;
  }

  /// Whether backward() reduces: outside the scope of every NoSync.
  bool reduces() const noexcept { return driver_->reduces(); }

  /// Statistics of this rank; ddp::to_string formats them as a line.
  ddp::ReducerStatistics statistics() const noexcept {
    ddp::ReducerStatistics statistics = driver_->reducer->statistics();
    statistics.why_nothing_is_hidden = driver_->why_nothing_is_hidden;
    statistics.program_drives_steps = driver_->program_drives_steps;
    return statistics;
  }

  /// Collective, blocking: the slowest rank, for which all other ranks wait. @throws the job's first cause.
  ddp::SlowestRank slowest_rank() {
    return ddp::find_slowest_rank_blocking(*group::GroupAccess::of(group_).handle(), driver_->prefix + "report",
                                           statistics());
  }

  /// Collective, blocking: statistics and slowest rank as a line. @throws the job's first cause.
  std::string summary() { return to_string(statistics()) + "; " + to_string(slowest_rank()); }

  /// Collective, blocking, between steps: compares the values of all ranks by a digest, for ranks that train apart, and
  /// the options of the group's DistributedSamplers.
  /// The variable DTRAIN_CHECK_VALUES=N does so before every N-th step. Host memory only. With hooks::LocalSgd values
  /// are equal after a step that averages them, not between two of these.
  /// @throws Error (disagreement) on every rank: the first parameter whose values differ, or a sampler's option, and
  /// the ranks; or a rank whose wrapper has ended; (invalid_argument) if a value has moved; (unsupported) for values on
  /// a GPU; the job's first cause
  void compare_values() {
    group::GroupAccess::of(group_).rank_context()->require_may_block();
    driver_->compare_values(group::GroupAccess::of(group_), "compare_values()");
  }

  /// Records of the steps from `first_step` on, counted from 1; complete with DdpOptions::timeline. Threads: any.
  std::vector<ddp::StepRecord> records(std::uint64_t first_step = 0) const {
    return driver_->reducer->recorder().records(first_step);
  }

  /// The model's parameters at the construction; values that move (ddp::MovesValues) have their present addresses.
  /// gradient(i) has the present address of a gradient. @throws as the model's value_reader()
  const std::vector<Parameter>& parameters() const { return driver_->present_parameters(); }
  const ddp::BucketPlan& plan() const noexcept { return driver_->reducer->plan(); }
  const ProcessGroup<P>& group() const noexcept { return group_; }
  /// Keeps the memory of bound gradients valid after this object is destroyed.
  std::shared_ptr<const void> gradient_memory() const noexcept { return driver_->reducer->gradient_memory(); }

 private:
  friend ddp::DriverAccess;
  using Driver =
      ddp::Driver<Backend,
                  std::remove_cvref_t<decltype(group::GroupAccess::of(std::declval<const ProcessGroup<P>&>()))>>;

  /// @param model the model; or a ParameterList
  template <class Model, class H>
  void construct(Model&& model, const DdpOptions& options, H&& hook) {
    if constexpr (ddp::Model<M> || ddp::IsParameterList<M>) {  // else a static_assert has failed
      try {
        driver_->construct(group::GroupAccess::of(group_), ddp::model_functions(model), options,
                           ddp::hook_functions<Communicator>(std::forward<H>(hook)));
      } catch (...) {
        hand_over_to_group();
        throw;
      }
    }
  }

  template <class F>
  static constexpr void require_pass() noexcept {
    static_assert(std::invocable<F, Ready>,
                  "dtrain: backward(f) calls f(ready) with a dtrain::Ready, by value: write "
                  "[&](dtrain::Ready ready) { ... }, which calls ready(i) for each gradient");
  }

  template <class F>
  bool run(F&& f, Step step) {
    or_report([&] { std::forward<F>(f)(step.ready()); });
    return step.finish();
  }

  /// Calls `act` in an open step; reports its exception to the job.
  template <class F>
  void or_report(F&& act) {
    try {
      act();
    } catch (...) {
      driver_->report_exception(group::GroupAccess::of(group_));
      throw;
    }
  }

  Step begin(const char* caller, StepOptions options) {
    return driver_->begin(group::GroupAccess::of(group_), caller, std::move(options));
  }

  template <class R>
  Step begin(const char* caller, ShardedOptimizer<R, Communicator>& optimizer, StepOptions options) {
    if (!reduces()) {
      ddp::refuse_work(caller,
                       "a ShardedOptimizer, but under no_sync(), where steps reduce nothing; leave the optimizer out, "
                       "and give it to the step after it");
    }
    group::RankContext& context = *group::GroupAccess::of(group_).rank_context();
    context.require_may_block();
    driver_->compare_if_due(group::GroupAccess::of(group_), caller);
    optimizer.require_usable(options, caller);
    context.sharded.begin_step(caller, optimizer.is_loaded());
    Step step = driver_->reducer->begin(caller, std::move(options), &optimizer.work());
    driver_->count_step(group::GroupAccess::of(group_));
    or_report([&] { optimizer.renew_values(); });
    return step;
  }

  Step begin(ddp::StepWork<Communicator>& work, StepOptions options) {
    group::GroupAccess::of(group_).rank_context()->require_may_block();
    driver_->compare_if_due(group::GroupAccess::of(group_), "backward()");
    if (options.master != nullptr) options.master->require_of(driver_->parameters, "backward()");
    Step step = driver_->reducer->begin("backward()", std::move(options), &work);
    driver_->count_step(group::GroupAccess::of(group_));
    return step;
  }

  /// Lets the group keep the driver, which therefore drops its references to the group and (for another wrapper) to the
  /// model.
  void hand_over_to_group() noexcept {
    driver_->drop_callbacks();
    group::GroupAccess::of(group_).rank_context()->keep_alive_until_leave(std::move(driver_));
  }

  ProcessGroup<P> group_;
  std::shared_ptr<Driver> driver_;
  int exceptions_ = std::uncaught_exceptions();
};

template <class P, class H = int>
DistributedDataParallel(const ParameterList&, ProcessGroup<P>, DdpOptions = {}, H&& = {})
    -> DistributedDataParallel<ParameterList, P>;
template <class E, std::size_t Count, class P, class H = int>
DistributedDataParallel(std::span<E, Count>, ProcessGroup<P>, DdpOptions = {}, H&& = {})
    -> DistributedDataParallel<ParameterList, P>;

}  // namespace DTRAIN_NAMESPACE
