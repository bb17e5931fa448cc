#pragma once
/// @file
/// Reducer of a Driver: a wrapper's steps: each gradient is marked ready once and reduced; a failed step reports to the
/// job.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/block_until_complete.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/address_check.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/planning/bucket_planner.hpp"
#include "dtrain/ddp/profile/reducer_statistics.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/ddp/profile/step_record.hpp"
#include "dtrain/ddp/reduction/accumulation.hpp"
#include "dtrain/ddp/reduction/bucket_reduction.hpp"
#include "dtrain/ddp/reduction/ready_gradients.hpp"
#include "dtrain/ddp/step.hpp"
#include "dtrain/ddp/step_options.hpp"
#include "dtrain/ddp/step_work.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Called before an exception leaves a step, because the exception may free the hook or the optimizer. Ends the process
/// if the stream still runs their work after the context's timeout. Blocking: until their work has run; the call may
/// abort the channel.
template <class Reduction>
void end_borrowed_work(Reduction& reduction, const FailureContext& context) noexcept {
  if (!reduction.borrows()) return;
  constexpr std::chrono::seconds grace{2};  // most work ends by itself, and the other ranks' too
  const Cause cause{CauseKind::exception, context.rank, context.host, "a step ended by an exception"};
  if (!reduction.end(false, cause, Deadline::after(grace)) &&
      !reduction.end(true, cause, Deadline::after(context.timeout))) {
    log(LogLevel::error,
        "a stream still runs the work of a gradient hook or an optimizer, which an exception would free");
    std::abort();
  }
}

/// Owns a channel, and an arena in which all gradients are reduced. A bound gradient lies in the arena. Any other
/// gradient is packed when it is ready and unpacked once it is reduced, by the host or by streams (GradientCopierFor).
/// Steady state: allocates nothing; one lock for each bucket. Threads: `ready` of a step from any thread; all other
/// calls from one thread. Lifetime: the stream's owner and the parameters' memory outlive it. Not movable, because
/// steps point to the reducer.
template <backend::Communicator Communicator>
class Reducer final : public Step::Target, private group::RankActivity::Steps {
 public:
  using Stream = typename Communicator::Stream;
  using GradientCopier = typename BucketReduction<Communicator>::GradientCopier;

  /// Collective, blocking: allocates the arena. `plan` is made from the gradients of `parameters`, in the same order;
  /// both are the same on every rank. @throws Error (unsupported) for gradients on another device than the stream's.
  Reducer(Communicator communicator, Stream stream, std::span<const Parameter> parameters, BucketPlan plan,
          const DdpOptions& options, FailureContext context, ReducerParts parts = {},
          HookFunctions<Communicator> hook = {});
  Reducer(const Reducer&) = delete;

  /// Blocking: until the work that uses the arena has ended. Work of an unfinished step is aborted.
  ~Reducer();

  /// Blocking, between steps: moves the gradient into the arena, with its content. @returns its view there
  TensorView bind(std::size_t parameter) { return reduction_.bind(parameter); }
  /// Records the parameters' present addresses for the address check. After the last bind.
  void remember_addresses() { addresses_.remember(); }
  /// Begins a step. @throws the job's first cause; Error (invalid_argument) if another step is open or a step has
  /// failed; (unsupported) for a norm without a kernel; (invalid_argument) for work together with a hook, or of other
  /// buckets.
  /// @param caller the user's call, for error sentences
  /// @param work work of the step with the buckets; null: the step reduces the buckets for the model
  Step begin(const char* caller = "begin()", StepOptions step = {}, StepWork<Communicator>* work = nullptr) {
    throw_if_unusable(caller);
    const bool is_for_model = work == nullptr || work->is_for_model();
    require_valid(step, GradientCopier::copies_on_stream, !is_for_model, caller);
    if (step.needs_norm() && !can_measure_norms<Stream>) BucketNorms::refuse_stream(caller);
    or_report([&] { addresses_.begin_step(steps_ + 1); });
    const bool scales_model = is_for_model && step.master == nullptr;
    reduction_.begin_step(std::move(step), work, caller);
    scales_model_ = scales_model;
    ready_.begin_step();
    lifetime_->is_step_open = true;
    context_.enter(rendezvous::RankPhase::backward, this);
    if (context_.activity) context_.activity->count_step();
    return Step(*this);
  }

  /// Throws the errors of begin().
  void throw_if_unusable(const char* caller = "begin()") {
    if (lifetime_->is_step_open && !ready_.is_open()) context_.latch->block_until_failed(Deadline::after(cause_grace));
    backend::throw_if_failed(reduction_.communicator(), *context_.latch, context_.rank);
    if (lifetime_->is_step_open) refuse_begin(caller, ready_.is_open());
  }

  std::shared_ptr<const ReducerLifetime> lifetime() const noexcept { return lifetime_; }  ///< a ShardedOptimizer's
  void ready(const ReadyGradient& gradient) override {
    const std::size_t parameter = gradient.parameter;
    const GradientTable& gradients = reduction_.gradients();
    gradients.check(gradient);
    const std::byte* const own = gradients[parameter].own;
    const std::byte* const memory = gradients.memory_of(gradient);
    if (memory != own && accumulated_[parameter]) {
      gradients.names().refuse_ready(parameter, Accumulation::why_not_elsewhere);
    }
    if (context_.latch->failed()) {
      if (context_.is_elastic) return;
      context_.latch->throw_if_failed(context_.rank);
    }
    ready_.mark_ready(parameter);
    reduction_.meter().ready(parameter);
    try {
      reduction_.add_gradient(parameter, memory, gradient.stream.value_or(StreamHandle{}));
    } catch (const JobFailed&) {
      if (!context_.is_elastic) throw;
    }
  }

  bool finish() override {
    if (!ready_.end_step()) {
      throw_error(Errc::invalid_argument, "finish() came when no step was under way; begin() one first");
    }
    reduction_.meter().waiting();
    context_.enter(rendezvous::RankPhase::finish, this);
    bool updates = true;
    or_report([&] {
      backend::throw_if_failed(reduction_.communicator(), *context_.latch, context_.rank);
      require_complete();
      updates = reduction_.finish();
      if (reduction_.finite().has_finding()) tell_not_finite();
    });
    bytes_reduced_ += payload_bytes(plan());
    std::fill(accumulated_.begin(), accumulated_.end(), std::nullopt);
    ++steps_;
    rebuild_buckets();
    lifetime_->is_step_open = false;
    context_.enter(rendezvous::RankPhase::outside);
    return updates;
  }

  void abandon(bool unwinding) noexcept override {
    ready_.end_step();
    if (unwinding) context_.enter(rendezvous::RankPhase::unwinding);
    context_.report_abandoned_step(unwinding);
    end_borrowed_work(reduction_, context_);
  }

  /// Drops the callbacks and the objects that they hold. After the last step.
  void drop_callbacks() noexcept {
    reduction_.stop_launching();
    context_.group = nullptr;
    reduction_.on_all_gradients_ready({});
    reduction_.drop_options();  // a failed step leaves them
    rebuild_ = {};
    addresses_.forget();
  }

  ReducerStatistics statistics() const noexcept { return reduction_.statistics(steps_, bytes_reduced_); }

  /// On CUDA: makes later work of `stream` run after the last step. Blocking: no.
  void order_after_step([[maybe_unused]] StreamHandle stream) const {
    if constexpr (GradientCopier::copies_on_stream) reduction_.copier().make_wait(stream);
  }

  /// On CUDA, within a step, after its last ready(): what the step writes to the model comes after the work that is on
  /// `stream` at the step's end. Blocking: no.
  void order_before_values([[maybe_unused]] StreamHandle stream) {
    if constexpr (GradientCopier::copies_on_stream) reduction_.copier().note_stream(stream);
  }

  /// The norm of the reduced gradients. Blocking, on CUDA only: until the last step has run.
  /// @throws Error (invalid_argument) if the last step did not measure the norm; as finish
  const GradientNorm& gradient_norm() {
    if constexpr (GradientCopier::copies_on_stream) or_report([this] { reduction_.read_norm(); });
    return reduction_.norms().norm();
  }
  /// Number of finished steps.
  std::uint64_t steps() const noexcept { return steps_; }
  const BucketNormsFor<Stream>& norms() const noexcept { return reduction_.norms(); }
  /// As BucketReduction::scale_gradients. @throws as gradient_norm; Error (invalid_argument) after a step with work of
  /// an optimizer, or with StepOptions::master
  void scale_gradients(double factor, double max_norm = std::numeric_limits<double>::infinity()) {
    if (!scales_model_) refuse_to_scale();
    if (reduction_.needs_norm_to_scale()) static_cast<void>(gradient_norm());
    reduction_.scale_gradients(factor, max_norm);
  }
  BucketNormsFor<Stream>& norms() noexcept { return reduction_.norms(); }  ///< a ShardedOptimizer sets them

  const TensorView& gradient(std::size_t parameter) const noexcept { return reduction_.gradients().view(parameter); }
  const GradientTable& gradients() const noexcept { return reduction_.gradients(); }
  const Communicator& communicator() const noexcept { return reduction_.communicator(); }
  const DdpOptions& options() const noexcept { return options_; }
  ReadyCheck& ready_check() noexcept { return reduction_.ready_check(); }
  /// The latest step records. Threads: any.
  const StepRecorder& recorder() const noexcept { return reduction_.meter().recorder(); }
  /// The bucket plan. A rebuild replaces it after the first step.
  const BucketPlan& plan() const noexcept { return reduction_.plan(); }

  /// Target of steps that reduce nothing. Lifetime: the reducer's.
  Accumulation accumulation() noexcept {
    return {reduction_.gradients(), reduction_.plan(),        accumulated_,     context_,
            reduction_.meter(),     reduction_.ready_check(), reduction_.sums()};
  }

  /// Between steps: the rank's statuses have this digest of the weights, and the number of steps.
  void note_values(std::uint64_t digest) {
    const std::lock_guard lock(values_mutex_);
    values_ = {steps_, digest, world_size_};
  }

  /// The next step is one without data.
  void leave_out_step() noexcept { reduction_.meter().leave_out_step(); }

  /// Between steps: forgets what passes under no_sync() have left, but for gradients in the model's own memory.
  void discard_accumulated() noexcept {
    std::fill(accumulated_.begin(), accumulated_.end(), std::nullopt);
    reduction_.ready_check().release();
    reduction_.sums().clear();
  }

  /// Between steps, before values are read: @throws Error (invalid_argument) if a parameter has moved
  /// @param reports whether the job gets the error, for other ranks that wait for this one
  void check_addresses(bool reports) {
    const auto check = [this] { addresses_.check(steps_ + 1); };
    reports ? or_report(check) : check();
  }

  /// For ShardedOptimizer and libtorch.hpp. Collective, blocking. Between steps; as GradientArena::reuse_memory.
  void reuse_memory(bool unbinds = false) {
    reduction_.reuse_memory(unbinds);
    if (!unbinds) return;
    std::fill(accumulated_.begin(), accumulated_.end(), std::nullopt);  // ready() gives the sums
    reduction_.ready_check().release();                                 // its gradients have lost their memory
  }
  /// For the same callers: keeps the present plan, without a rebuild. Every rank calls it between the same steps.
  /// @throws Error (invalid_argument) while a planner changes the plan
  void keep_plan() {
    if (rebuild_.is_planning()) refuse_to_keep_plan();
    keep_order();
  }
  /// For ShardedOptimizer. Collective, blocking; as BucketReduction::connect.
  template <class Work>
  void connect(Work& work) {
    or_report([&] { reduction_.connect(work); });
  }
  BucketPlanner* planner() const noexcept { return rebuild_.planner.get(); }  ///< null: there is none

  /// Keeps the arena, with bound gradients, valid after the reducer is destroyed.
  std::shared_ptr<const void> gradient_memory() const noexcept { return reduction_.memory(); }

 private:
  /// Grace period for the report of an abandoned step, whose cause is more precise than later ones.
  static constexpr std::chrono::milliseconds cause_grace{500};

  /// Calls `act`; reports its exception to the other ranks, which wait for this one.
  template <class F>
  void or_report(F&& act) {
    try {
      act();
    } catch (const JobFailed&) {  // the job has its cause already
      end_borrowed_work(reduction_, context_);
      throw;
    } catch (...) {
      context_.report_exception(exception_text());
      end_borrowed_work(reduction_, context_);
      throw;
    }
  }

  /// @throws Error (not_finite) with OnNotFinite::fail
  DTRAIN_NOT_INLINED void tell_not_finite() {
    rendezvous::RankStatus::Finding finding;
    finding.text = reduction_.finite().describe(addresses_, finding.is_sum);
    if (options_.on_not_finite == OnNotFinite::fail) {
      if (finding.is_sum) context_.latch->block_until_failed(Deadline::after(std::chrono::seconds(5)));
      context_.latch->throw_if_failed(context_.rank);  // by the rank whose own gradient it is
      throw Error(Errc::not_finite, std::move(finding.text)).with_rank(context_.rank);
    }
    if (!context_.activity) return;
    finding.step = context_.activity->steps();
    context_.activity->report(std::move(finding));
  }

  void require_complete() {
    reduction_.throw_if_launch_failed();
    addresses_.end_step();
    if (const std::string missing = ready_.missing(); !missing.empty()) {
      if (!options_.allow_unused_parameters) {
        throw Error(Errc::missing_gradient, missing).with_rank(context_.rank);
      }
      add_accumulated();
      reduction_.zero_fill_others([this](std::size_t i) { return ready_.was_ready(i) || is_accumulated(i); });
    }
    if (!reduction_.all_complete()) {
      throw Error(Errc::invalid_argument,
                  "finish() came while a ready() of its step was still running; wait for its return first")
          .with_rank(context_.rank);
    }
    reduction_.throw_if_launch_failed();  // a launch in a ready() during finish()
  }

  /// Whether passes under no_sync() have left a gradient of the parameter.
  bool is_accumulated(std::size_t parameter) const noexcept {
    return accumulated_[parameter] || owner_->sums().has(parameter);
  }

  void add_accumulated() {
    for (std::size_t parameter = 0; parameter < reduction_.gradients().size(); ++parameter) {
      if (!ready_.was_ready(parameter) && is_accumulated(parameter)) {
        const std::optional<StreamHandle>& stream = accumulated_[parameter];
        reduction_.add_gradient(parameter, stream ? reduction_.gradients()[parameter].own : nullptr,
                                stream.value_or(StreamHandle{}));
      }
    }
  }

  /// Rebuilds buckets after the first step, if configured and if no graph stores addresses; with a planner, until it
  /// settles.
  void rebuild_buckets() {
    const bool reorders = rebuild_.agreed_order && reduction_.copier().may_move();
    if (reorders || rebuild_.is_planning()) {
      or_report([&] {
        const auto order = reorders ? rebuild_.agreed_order(ready_.observed_order()) : std::vector<std::size_t>();
        if (reduction_.rebuild_buckets(order, rebuild_, options_.caps())) addresses_.remember();
      });
    }
    if (steps_ == 1) keep_order();
  }

  void describe(rendezvous::RankStatus& status) const override { ready_.describe(status); }
  rendezvous::ValuesDigest values() const override {
    const std::lock_guard lock(values_mutex_);
    return values_;
  }
  rendezvous::ComputingWindow computing(Deadline::Clock::time_point now) override {
    rendezvous::ComputingWindow window = reduction_.meter().computing().latest(now);
    window.ranks = world_size_;
    return window;
  }

  void keep_order() {
    rebuild_.agreed_order = {};
    rebuild_.publish_order = {};
    reduction_.on_all_gradients_ready({});
    ready_.record_order(false);
  }

  FailureContext context_;
  std::uint32_t world_size_;
  DdpOptions options_;
  BucketRebuild rebuild_;
  std::unique_ptr<BucketReduction<Communicator>> owner_;
  BucketReduction<Communicator>& reduction_ = *owner_;
  ReadyGradients ready_;
  AccumulationStreams accumulated_;
  AddressCheck addresses_;
  bool scales_model_ = true;  ///< whether the latest step's options are of the gradients that the model has
  std::uint64_t steps_ = 0;
  std::uint64_t bytes_reduced_ = 0;
  mutable std::mutex values_mutex_;
  rendezvous::ValuesDigest values_;
  std::shared_ptr<ReducerLifetime> lifetime_ = std::make_shared<ReducerLifetime>();
};

// Outside the class, so that instances among the compiled definitions are not instantiated again.

template <backend::Communicator Communicator>
Reducer<Communicator>::Reducer(Communicator communicator, Stream stream, std::span<const Parameter> parameters,
                               BucketPlan plan, const DdpOptions& options, FailureContext context, ReducerParts parts,
                               HookFunctions<Communicator> hook)
    : context_(std::move(context)),
      world_size_(context_.group ? static_cast<std::uint32_t>(context_.group->members().world_size) : 0),
      options_(options),
      rebuild_(std::move(parts.rebuild)),
      owner_(new BucketReduction<Communicator>(std::move(communicator), stream, parameters, parts.buffers,
                                               std::move(plan), options, context_, std::move(parts.running),
                                               parts.scales_averages, parts.late_writes, std::move(hook))),
      ready_(reduction_.gradients().names()),
      accumulated_(parameters.size()),
      addresses_(std::move(parts.read_parameters), options.check_addresses) {
  ready_.record_order(rebuild_.agreed_order != nullptr);
  if (context_.activity) context_.activity->add(*this);
  if (rebuild_.publish_order) {
    reduction_.on_all_gradients_ready([this] { rebuild_.publish_order(ready_.observed_order()); });
  }
}

template <backend::Communicator Communicator>
Reducer<Communicator>::~Reducer() {
  if (context_.activity) context_.activity->remove(*this);
  lifetime_->has_ended = lifetime_->leaves_work = true;
  try {
    const bool is_idle =
        reduction_.end(lifetime_->is_step_open,
                       {CauseKind::exception, context_.rank, context_.host, "a step was abandoned without finish()"},
                       Deadline::after(context_.timeout));
    lifetime_->leaves_work = !is_idle;
    if (!is_idle) {
      static_cast<void>(owner_.release());  // leaked: its memory is still in use after the wait
      log(LogLevel::warning, "a stream still runs a step that was abandoned; the memory of its gradients is kept");
    }
  } catch (...) {
    // A destructor cannot report it.
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp
