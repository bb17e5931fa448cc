#pragma once
/// @file
/// The reducer: steps in which every gradient is announced once and reduced, or the job is told why not.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/throw_if_failed.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/exception_text.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/ddp/accumulation.hpp"
#include "dtrain/ddp/address_check.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/pipeline.hpp"
#include "dtrain/ddp/ready_ledger.hpp"
#include "dtrain/ddp/reducer_options.hpp"
#include "dtrain/ddp/statistics.hpp"
#include "dtrain/ddp/step.hpp"
#include "dtrain/ddp/step_recorder.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Owns a channel and an arena that all gradients are reduced in. A bound gradient lives there; any other is copied in
/// when it is ready and back once it is reduced: by the host or by streams, as the Flow of the communicator's stream
/// says. Steady state: nothing is allocated; one gate for each bucket.
/// Threads: `ready` of a step from any thread; everything else from one. Lifetime: the stream's owner and the
/// parameters' memory outlive it; it is pinned, because steps point to it.
template <backend::Communicator Communicator>
class Reducer final : public Step::Target {
 public:
  using Stream = typename Communicator::Stream;

  /// Collective, blocking: allocates the arena. `plan` was made of `parameters`' gradients, in the same order; both are
  /// the same on every rank. @throws Error (unsupported) for gradients that are not where the stream runs.
  Reducer(Communicator communicator, Stream stream, std::span<const Parameter> parameters, BucketPlan plan, ReduceOp op,
          FailureContext context, ReducerOptions options = {})
      : context_(std::move(context)),
        options_(std::move(options)),
        owner_(new Pipeline<Communicator>(
            std::move(communicator), stream, parameters, options_.buffers, std::move(plan), op, context_,
            options_.records, Metering{options_.records_every_ready, options_.device_times, options_.running})),
        ledger_(pipeline_.gradients().names()),
        accumulated_(parameters.size()),
        addresses_(std::move(options_.read_parameters), options_.check_addresses) {
    ledger_.observe_order(options_.replanning.agree != nullptr);
    if (options_.replanning.publish) {
      pipeline_.when_all_are_there([this] { options_.replanning.publish(ledger_.observed_order()); });
    }
  }

  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Blocking: until the work that points into the arena has ended; that of a step that was not finished is aborted.
  ~Reducer() {
    try {
      const bool is_idle = pipeline_.end(
          under_way_, {CauseKind::exception, context_.rank, context_.host, "a step was abandoned without finish()"},
          Deadline::after(context_.timeout));
      if (!is_idle) {
        static_cast<void>(owner_.release());  // its memory is still in use, and nobody is left to wait longer
        log(LogLevel::warning, "a stream still runs a step that was given up; the memory of its gradients is kept");
      }
    } catch (...) {
      // Nothing more can be done here, and nobody is left to be told.
    }
  }

  /// Blocking. Gradient i lives in the arena from now on; what it holds is copied there. Between steps.
  /// @returns where: the view to hand to the model's bind_gradient.
  TensorView bind(std::size_t parameter) {
    ledger_.check_index(parameter);
    return pipeline_.bind(parameter, context_);
  }

  /// From now on the model's parameters stay where it says that they are now. After the last bind.
  void remember_addresses() { addresses_.remember(); }

  /// Begins a step. @throws the job's first cause; Error (invalid_argument) while another one is under way or after one
  /// that failed.
  /// @param caller what the user called, for sentences
  Step begin(const char* caller = "begin()") {
    throw_if_unusable(caller);
    or_tell([&] { addresses_.begin_step(steps_ + 1); });
    pipeline_.begin_step();
    ledger_.begin_step();
    under_way_ = true;
    return Step(*this);
  }

  /// What begin() throws.
  void throw_if_unusable(const char* caller = "begin()") const {
    if (under_way_ && !ledger_.is_open()) {
      context_.latch->block_until_failed(Deadline::after(cause_grace));
    }
    backend::throw_if_failed(pipeline_.communicator(), *context_.latch, context_.rank);
    if (under_way_) {
      throw Error(Errc::invalid_argument,
                  caller + std::string(ledger_.is_open()
                                           ? " came while a step was under way; finish() it first, or let the "
                                             "backward() that it is in return"
                                           : " came after a step that failed; gradients are no longer the same on all "
                                             "ranks"));
    }
  }

  /// See Step; the reducer is what its calls arrive at.
  void ready(std::size_t parameter) override {
    pipeline_.flow().require_no_stream(parameter);
    announce(parameter, nullptr, {});
  }

  void ready(std::size_t parameter, StreamHandle stream) override {
    ledger_.check_index(parameter);
    pipeline_.flow().require_stream(parameter, stream);
    announce(parameter, nullptr, stream);
  }

  void ready(std::size_t parameter, const TensorView& gradient, StreamHandle stream) override {
    ledger_.check_index(parameter);
    pipeline_.flow().require_stream(parameter, stream);
    pipeline_.gradients().require_same_kind(parameter, gradient);
    if (accumulated_.has(parameter) && gradient.data != pipeline_.gradients()[parameter].own) {
      throw Error(Errc::invalid_argument,
                  "ready(" + std::to_string(parameter) + ") for " + ledger_.describe(parameter) +
                      " came with other memory, and what steps under no_sync() left in its own would be lost; add to "
                      "that, and call ready(i)");
    }
    announce(parameter, gradient.data, stream);
  }

  void finish() override {
    if (!ledger_.end_step()) {
      throw Error(Errc::invalid_argument, "finish() came when no step was under way; begin() one first");
    }
    pipeline_.meter().waiting();
    backend::throw_if_failed(pipeline_.communicator(), *context_.latch, context_.rank);
    complete_or_throw();
    or_tell([&] { pipeline_.finish(context_); });
    for (const PlannedBucket& bucket : plan().buckets) {
      bytes_reduced_ += bucket.payload_bytes;
    }
    accumulated_.clear();
    if (++steps_ == 1) {
      replan();
    }
    under_way_ = false;
  }

  void abandon(bool unwinding) noexcept override {
    ledger_.end_step();
    try {
      if (context_.step_abandoned) {
        context_.step_abandoned(unwinding);
      } else {
        context_.report_exception("a step was abandoned without finish()");
      }
    } catch (...) {
      // The others notice when this rank leaves without having taken part.
    }
  }

  /// Drops what was given for calling back, and with it what that holds. After the last step.
  void forget_hooks() noexcept {
    pipeline_.stop_launching();
    context_.step_abandoned = nullptr;
    pipeline_.when_all_are_there({});
    options_.replanning = {};
    addresses_.forget();
  }

  ReducerStatistics statistics() const noexcept {
    const StepMeter& meter = pipeline_.up_to_date_meter();
    return {steps_,
            bytes_reduced_,
            plan().buckets.size(),
            meter.times(),
            Pipeline<Communicator>::Flow::is_measured || meter.measured_steps() > 0,
            meter.measured_steps(),
            meter.unreduced_passes()};
  }

  /// The latest step records. Threads: any.
  const StepRecorder& recorder() const noexcept { return pipeline_.meter().recorder(); }

  /// Another one after the first step, where replanning was wanted.
  const BucketPlan& plan() const noexcept { return pipeline_.plan(); }

  /// Target of a step that reduces nothing. Lifetime: the reducer's.
  Accumulation accumulation() noexcept {
    return {ledger_, pipeline_.gradients(), accumulated_, context_, pipeline_.meter()};
  }

  /// Keeps the arena, and with it every bound gradient, in place after the reducer is gone.
  std::shared_ptr<const void> gradient_memory() const noexcept { return pipeline_.memory(); }

 private:
  /// How long the news that a step was abandoned may be on its way: it says more than what comes after.
  static constexpr std::chrono::milliseconds cause_grace{500};

  /// @param gradient null for the parameter's own memory
  void announce(std::size_t parameter, const std::byte* gradient, StreamHandle stream) {
    if (context_.latch->failed()) {
      context_.latch->throw_if_failed(context_.rank);
    }
    ledger_.enter(parameter);
    pipeline_.meter().ready(parameter);
    pipeline_.arrive(parameter, gradient != nullptr ? gradient : pipeline_.gradients()[parameter].own, stream);
  }

  /// Calls `act`; the others, who wait for this rank, learn what it throws.
  template <class F>
  void or_tell(F&& act) {
    try {
      act();
    } catch (const JobFailed&) {
      throw;  // no news to them
    } catch (...) {
      context_.report_exception(exception_text());
      throw;
    }
  }

  void complete_or_throw() {
    or_tell([&] {
      pipeline_.throw_if_launch_failed();
      addresses_.end_step();
      if (const std::string missing = ledger_.missing(); !missing.empty()) {
        if (!options_.allow_unused_parameters) {
          throw Error(Errc::missing_gradient, missing).with_rank(context_.rank);
        }
        bring_accumulated();
        pipeline_.leave_out_others([this](std::size_t parameter) { return takes_part(parameter); });
      }
      if (!pipeline_.all_complete()) {
        throw Error(Errc::invalid_argument,
                    "finish() came while a ready() of its step was still running; wait for its return first")
            .with_rank(context_.rank);
      }
    });
  }

  /// Announced in this step, or left by one that reduced nothing.
  bool takes_part(std::size_t parameter) const noexcept {
    return ledger_.was_ready(parameter) || accumulated_.has(parameter);
  }

  void bring_accumulated() {
    for (std::size_t parameter = 0; parameter < pipeline_.gradients().size(); ++parameter) {
      if (!ledger_.was_ready(parameter) && accumulated_.has(parameter)) {
        pipeline_.arrive(parameter, pipeline_.gradients()[parameter].own, accumulated_.stream(parameter));
      }
    }
  }

  /// Once, where it is wanted and no graph holds addresses.
  void replan() {
    if (Replanning& replanning = options_.replanning; replanning.agree && pipeline_.flow().may_move()) {
      or_tell([&] {
        pipeline_.replan(replanning.agree(ledger_.observed_order()), replanning, context_);
        addresses_.remember();  // bound gradients have moved
      });
      replanning = {};
    }
    pipeline_.when_all_are_there({});
    ledger_.observe_order(false);
  }

  FailureContext context_;
  ReducerOptions options_;
  std::unique_ptr<Pipeline<Communicator>> owner_;
  Pipeline<Communicator>& pipeline_ = *owner_;
  ReadyLedger ledger_;
  AccumulatedGradients accumulated_;
  AddressCheck addresses_;
  std::uint64_t steps_ = 0;
  std::uint64_t bytes_reduced_ = 0;
  bool under_way_ = false;  ///< stays true after a step that failed
};

}  // namespace DTRAIN_NAMESPACE::ddp
