#pragma once
/// @file
/// The reducer: turns "gradient i is ready" into collectives on buckets, in one order on all ranks.

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
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/ddp/bucket.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/launch_queue.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/ready_ledger.hpp"
#include "dtrain/ddp/step.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// What was reduced so far. A step that failed is not counted.
struct ReducerStatistics {
  std::uint64_t steps = 0;
  std::uint64_t bytes_reduced = 0;  ///< of gradients, without padding
  std::size_t buckets = 0;          ///< in the plan
};

/// Owns a channel and an arena that all gradients are reduced in. A bound gradient lives there; any other is copied in
/// when it is ready and out when the step finishes. Steady state: nothing is allocated; one gate for each bucket.
/// Threads: `ready` of a step from any thread; everything else from one. Lifetime: the stream's owner and the
/// parameters' memory outlive it; it is pinned, because steps point to it.
template <backend::Communicator Communicator>
class Reducer final : public Step::Target {
 public:
  using Stream = typename Communicator::Stream;

  /// Collective, blocking: allocates the arena. `plan` was made of `parameters`' gradients, in the same order; both are
  /// the same on every rank. @throws Error (unsupported) for gradients that are not in host memory.
  Reducer(Communicator communicator, Stream stream, std::span<const Parameter> parameters, BucketPlan plan, ReduceOp op,
          FailureContext context)
      : communicator_(std::move(communicator)),
        stream_(stream),
        op_(op),
        context_(std::move(context)),
        plan_(std::move(plan)),
        arena_(allocate()),
        gradients_(parameters, plan_, arena_base()),
        ledger_(gradients_.names()),
        queue_(sizes_of(plan_)),
        buckets_(plan_.buckets.size()) {
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      buckets_[bucket].range = range_of(plan_.buckets[bucket], arena_base());
    }
  }

  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Work of a step that was not finished still points into the arena: it is ended first.
  ~Reducer() {
    if (!under_way_) {
      return;
    }
    try {
      communicator_.abort(
          {CauseKind::exception, context_.rank, context_.host, "a step was abandoned without finish()"});
      const Deadline deadline = Deadline::after(std::chrono::seconds(5));
      for (std::size_t bucket = 0; bucket < queue_.launched(); ++bucket) {
        static_cast<void>(buckets_[bucket].reduced.block_until_complete(deadline));
      }
    } catch (...) {
      // Nothing more can be done here, and nobody is left to be told.
    }
  }

  /// Gradient i lives in the arena from now on; what it holds is copied there. Between steps.
  /// @returns where: the view to hand to the model's bind_gradient.
  TensorView bind(std::size_t parameter) { return gradients_.bind(parameter); }

  /// Begins a step. @throws the job's first cause; Error (invalid_argument) while another one is under way or after one
  /// that failed.
  Step begin() {
    if (under_way_ && !ledger_.is_open()) {
      context_.latch->block_until_failed(Deadline::after(cause_grace));
    }
    backend::throw_if_failed(communicator_, *context_.latch, context_.rank);
    if (under_way_) {
      throw Error(Errc::invalid_argument,
                  ledger_.is_open()
                      ? "begin() came while a step was under way; finish() it first"
                      : "begin() came after a step that failed; gradients are no longer the same on all ranks");
    }
    queue_.begin_step();
    ledger_.begin_step();
    under_way_ = true;
    return Step(*this);
  }

  /// See Step; the reducer is what its calls arrive at.
  void ready(std::size_t parameter) override {
    enter(parameter);
    gradients_[parameter].pack();
    arrived(parameter);
  }

  void ready(std::size_t parameter, StreamHandle stream) override {
    ledger_.check_index(parameter);
    gradients_.require_host(parameter, stream);
    ready(parameter);
  }

  void ready(std::size_t parameter, const TensorView& gradient, StreamHandle stream) override {
    ledger_.check_index(parameter);
    gradients_.require_host(parameter, stream);
    gradients_.require_same_kind(parameter, gradient);
    enter(parameter);
    gradients_[parameter].pack_from(gradient.data);
    arrived(parameter);
  }

  void finish() override {
    if (!ledger_.end_step()) {
      throw Error(Errc::invalid_argument, "finish() came when no step was under way; begin() one first");
    }
    backend::throw_if_failed(communicator_, *context_.latch, context_.rank);
    throw_if_not_launched();
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      auto& reduced = buckets_[bucket].reduced;
      backend::block_until_complete(reduced, communicator_, *context_.latch, context_.timeout, context_.rank);
      for (const std::size_t parameter : plan_.buckets[bucket].parameters) {
        gradients_[parameter].unpack();
      }
    }
    for (const PlannedBucket& bucket : plan_.buckets) {
      statistics_.bytes_reduced += bucket.payload_bytes;
    }
    ++statistics_.steps;
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

  /// Drops FailureContext::step_abandoned, and with it what that holds. After the last step.
  void forget_hook() noexcept { context_.step_abandoned = nullptr; }

  ReducerStatistics statistics() const noexcept {
    ReducerStatistics now = statistics_;
    now.buckets = buckets_.size();
    return now;
  }

  const BucketPlan& plan() const noexcept { return plan_; }

  /// Keeps the arena, and with it every bound gradient, in place after the reducer is gone.
  std::shared_ptr<const void> gradient_memory() const noexcept { return arena_; }

 private:
  using Allocation = typename Communicator::Allocation;

  /// How long the news that a step was abandoned may be on its way: it says more than what comes after.
  static constexpr std::chrono::milliseconds cause_grace{500};

  std::shared_ptr<Allocation> allocate() {
    if (plan_.arena_bytes == 0) {
      return nullptr;
    }
    return std::make_shared<Allocation>(
        communicator_.allocate_blocking(plan_.arena_bytes, Deadline::after(context_.timeout)));
  }

  std::byte* arena_base() const noexcept { return arena_ ? arena_->data() : nullptr; }

  static std::vector<std::size_t> sizes_of(const BucketPlan& plan) {
    std::vector<std::size_t> sizes;
    for (const PlannedBucket& bucket : plan.buckets) {
      sizes.push_back(bucket.parameters.size());
    }
    return sizes;
  }

  /// The others wait for this rank's buckets: whatever keeps them back is told to the job. A bucket that was not
  /// launched has the event of the step before, which is complete.
  void throw_if_not_launched() {
    try {
      queue_.throw_if_launch_failed();
    } catch (const std::exception& error) {
      context_.report_exception(error.what());
      throw;
    }
    if (const std::string missing = ledger_.missing(); !missing.empty()) {
      context_.report_exception(missing);
      throw Error(Errc::missing_gradient, missing).with_rank(context_.rank);
    }
    if (queue_.launched() < buckets_.size()) {
      const std::string early =
          "finish() came while a ready() of its step was still running; wait for its return first";
      context_.report_exception(early);
      throw Error(Errc::invalid_argument, early).with_rank(context_.rank);
    }
  }

  void enter(std::size_t parameter) {
    if (context_.latch->failed()) {
      context_.latch->throw_if_failed(context_.rank);
    }
    ledger_.enter(parameter);
  }

  void arrived(std::size_t parameter) {
    queue_.arrived(plan_.bucket_of[parameter], [this](std::size_t next) { launch(next); });
  }

  /// Under the queue's gate, which makes it the one thread that enqueues.
  void launch(std::size_t next) {
    Bucket<typename Stream::Event>& bucket = buckets_[next];
    if (bucket.range.count != 0) {
      communicator_.all_reduce(bucket.range, bucket.range, op_, stream_);
    }
    stream_.record(bucket.reduced);
  }

  Communicator communicator_;
  Stream stream_;
  ReduceOp op_;
  FailureContext context_;
  BucketPlan plan_;
  std::shared_ptr<Allocation> arena_;
  GradientTable gradients_;
  ReadyLedger ledger_;
  LaunchQueue queue_;
  std::vector<Bucket<typename Stream::Event>> buckets_;
  ReducerStatistics statistics_;
  bool under_way_ = false;  ///< stays true after a step that failed
};

}  // namespace DTRAIN_NAMESPACE::ddp
