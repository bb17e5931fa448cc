#pragma once
/// @file
/// DistributedDataParallel: wraps a model and averages its gradients over the ranks while the backward pass runs.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/ddp/agreement.hpp"
#include "dtrain/ddp/broadcast_values.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/capture.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/model.hpp"
#include "dtrain/ddp/options.hpp"
#include "dtrain/ddp/ready.hpp"
#include "dtrain/ddp/reducer.hpp"
#include "dtrain/ddp/step.hpp"
#include "dtrain/process_group.hpp"
#include "dtrain/stream/host/progress.hpp"

namespace DTRAIN_NAMESPACE {

/// `DistributedDataParallel ddp{model, group};`
///
/// Lifetime: borrows the model, whose parameters stay at their addresses; keeps the group. Gradients that the model let
/// be placed (bind_gradient) live in memory of this object: after its destruction the model must not touch them, unless
/// gradient_memory() is kept. Threads: one drives the steps; a step's `ready` may be called from any.
template <class M, class P>
class DistributedDataParallel {
 public:
  static_assert(ddp::Model<M>,
                "dtrain: Model needs parameters(): a sized range of dtrain::Parameter (see dtrain/ddp/model.hpp)");

  /// Collective, blocking: opens a channel, makes sure that all ranks have the same model, gives every rank rank 0's
  /// values, plans the buckets, and binds the gradients where the model can.
  /// @throws Error (disagreement) or JobFailed on every rank where two models differ: the first difference and both
  /// ranks; Error (invalid_argument) for parameters that cannot be trained; (unsupported) for a device or an
  /// element type that the backend does not reduce, and for DdpOptions::deterministic where it promises no bits; the
  /// job's first cause.
  DistributedDataParallel(M& model, ProcessGroup<P> group, DdpOptions options = {})
      : group_(std::move(group)), driver_(std::make_shared<Driver>(group_)) {
    if constexpr (ddp::Model<M>) {  // else the assertion above has said it
      try {
        construct(model, options);
      } catch (...) {
        leave_to_group();
        throw;
      }
    }
  }

  DistributedDataParallel(M&&, ProcessGroup<P> group, DdpOptions = {}) : group_(std::move(group)) {
    static_assert(sizeof(M) == 0,
                  "dtrain: DistributedDataParallel borrows its model: give it a variable that outlives it");
  }

  DistributedDataParallel(DistributedDataParallel&&) noexcept = default;
  DistributedDataParallel& operator=(DistributedDataParallel&&) = delete;

  /// Blocking: no, unless work of an unfinished step is running. While an exception unwinds, the channel stays with the
  /// group: the peers are to end with that exception's text, and not because this rank's channel closed.
  ~DistributedDataParallel() {
    if (driver_ && std::uncaught_exceptions() > exceptions_) {
      leave_to_group();
    }
  }

  /// `f(ready)` runs the backward pass and calls `ready(i)` for every parameter; then all gradients are reduced.
  /// Collective, blocking. @throws what `f` throws, after telling the job, whose other ranks then throw its text; and
  /// as Step::finish.
  template <std::invocable<Ready> F>
  void backward(F&& f) {
    Step step = begin();
    try {
      std::forward<F>(f)(step.announcer());
    } catch (const std::exception& error) {
      report(error.what());
      throw;
    } catch (...) {
      report("an exception that is not a std::exception");
      throw;
    }
    step.finish();
  }

  /// The same in pieces: call `ready` on the step, then `finish`. @throws the job's first cause.
  Step begin() {
    group_.require_may_block();
    return driver_->reducer->begin();
  }

  ddp::ReducerStatistics statistics() const noexcept { return driver_->reducer->statistics(); }

  const ddp::BucketPlan& plan() const noexcept { return driver_->reducer->plan(); }

  const ProcessGroup<P>& group() const noexcept { return group_; }

  /// Keep it where bound gradients are used after this object is gone.
  std::shared_ptr<const void> gradient_memory() const noexcept { return driver_->reducer->gradient_memory(); }

 private:
  using Backend = typename P::Channels;
  using Reducer = ddp::Reducer<typename Backend::Communicator>;

  /// Steps point into it, so it does not move when this object does. The reducer goes before its stream.
  struct Driver {
    explicit Driver(const ProcessGroup<P>& group) : stream(group.open_stream()) {}
    typename Backend::StreamOwner stream;
    std::unique_ptr<Reducer> reducer;
  };

  /// The group keeps the channel, so the channel must not keep the group.
  void leave_to_group() noexcept {
    if (driver_->reducer) {
      driver_->reducer->forget_hook();
    }
    group_.outlive(std::move(driver_));
  }

  void construct(M& model, const DdpOptions& options) {
    const ddp::FailureContext context = failure_context();
    const std::vector<Parameter> parameters = ddp::capture_parameters(model);
    check_options(options);
    check_deterministic(options);
    check_reducible(parameters);
    group_.run_enqueued();  // other ranks may wait for it before they come here
    ddp::agree_blocking(group_.store(), instance_prefix(), ddp::describe(parameters, options), group_.rank(), context,
                        Deadline::after(group_.timeout()));

    auto communicator = group_.open_channel("ddp");
    ddp::broadcast_values(communicator, driver_->stream.ref(), parameters, context);
    ddp::BucketPlan plan = ddp::plan_buckets(ddp::gradient_sizes(parameters), options.caps());
    driver_->reducer = std::make_unique<Reducer>(std::move(communicator), driver_->stream.ref(), parameters,
                                                 std::move(plan), options.reduce_op, context);
    if constexpr (ddp::BindsGradients<M>) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        model.bind_gradient(i, driver_->reducer->bind(i));
      }
    }
    start_progress(options.progress);
  }

  /// Where the backend's streams are run by the host, a helper thread runs this one while the user computes.
  void start_progress(stream::host::Progress wanted) {
    if constexpr (requires { driver_->stream.start_helper(); }) {
      using stream::host::Progress;
      const int cores = stream::host::cores_by_affinity();
      if (stream::host::decide(wanted, cores, group_.local_world_size()) == Progress::thread) {
        driver_->stream.start_helper();
      }
    }
  }

  static void check_deterministic(const DdpOptions& options) {
    if (options.deterministic && backend::determinism_of<Backend> == backend::Determinism::none) {
      throw Error(Errc::unsupported,
                  "DdpOptions::deterministic is set, but backend " + std::string(std::string_view(Backend::name())) +
                      " does not promise the same bits in every run; use topology::Ring, whose order "
                      "of summation is fixed, or another backend");
    }
  }

  static void check_reducible(std::span<const Parameter> parameters) {
    const auto refuse = [&](std::size_t i, const std::string& what) {
      throw Error(Errc::unsupported, "parameter " + std::to_string(i) + " '" + parameters[i].name + "' " + what +
                                         ", which backend " + std::string(std::string_view(Backend::name())) +
                                         " does not reduce");
    };
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!Backend::supports(parameters[i].value.device.kind)) {
        refuse(i, "is on " + to_string(parameters[i].value.device));
      }
      if (!Backend::reduces(parameters[i].gradient.dtype)) {
        refuse(i, std::string("has a gradient of ") + name(parameters[i].gradient.dtype));
      }
    }
  }

  ddp::FailureContext failure_context() const {
    return {group_.failure(), group_.members().rank_in_job(), group_.members().host, group_.timeout(),
            [group = group_](bool unwinding) { group.note_abandoned_step(unwinding); }};
  }

  /// Instances are constructed in the same order on every rank: the store counts each rank's.
  std::string instance_prefix() const {
    const std::int64_t instance = group_.store().add_blocking("ddp/instances/" + std::to_string(group_.rank()), 1,
                                                              Deadline::after(group_.timeout()));
    return "ddp/" + std::to_string(instance) + "/";
  }

  /// What the job's own failure made `f` throw is no news to it.
  void report(const char* text) const {
    if (!group_.failure()->failed()) {
      group_.report_exception(text);
    }
  }

  ProcessGroup<P> group_;
  std::shared_ptr<Driver> driver_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace DTRAIN_NAMESPACE
