#pragma once
/// @file
/// StepMeter of a BucketReduction: times of a step's phases, and its event records. RunningBucket: the bucket in
/// communication now.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/operation.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/wait_time.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/profile/computing_times.hpp"
#include "dtrain/ddp/profile/step_record.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Translates a channel's operation into the user's terms: step, bucket, elements without padding. Threads: any.
class RunningBucket {
 public:
  void plan(const BucketPlan& plan);

  /// The communication has reached bucket `bucket` of step `step`, which counts from 1.
  void begin(std::uint64_t step, std::size_t bucket) noexcept {
    bucket_.store(bucket, std::memory_order_relaxed);
    step_.store(step, std::memory_order_relaxed);
  }

  /// "all_reduce (average) of 1000 f32 (bucket 0 of 3 in step 7)", without padding; before step 1, only the operation.
  std::string describe(backend::Operation operation) const;

 private:
  struct BucketSize {
    std::size_t elements;  ///< elements with padding
    std::size_t payload;   ///< elements without padding
  };

  mutable std::mutex mutex_;
  std::vector<BucketSize> buckets_;
  std::atomic<std::uint64_t> step_{0};
  std::atomic<std::size_t> bucket_{0};
};

/// Sums over steps.
struct StepTimes {
  /// From the end of a pass to begin(): forward pass, optimizer, data; also a backward pass that ends before the
  /// program calls begin(). This time and `backward` include passes under no_sync().
  std::chrono::nanoseconds forward{};
  std::chrono::nanoseconds backward{};       ///< time from begin() to finish()
  std::chrono::nanoseconds communication{};  ///< duration of the collectives, on a device without the copies
  std::chrono::nanoseconds hidden{};         ///< part before finish() was called; on a device, part during computation
  std::chrono::nanoseconds exposed{};        ///< time added to the step: in finish(), or on a device after computation
  /// Part of `forward` and `backward` in which the thread waited in dtrain, as in a barrier, a group's collective, or
  /// batch normalization over the ranks. Waits of some microseconds are not counted.
  std::chrono::nanoseconds waiting{};
};

/// Writes step records and sums up times. Steady state: allocates nothing. Threads: stamps run on the communication
/// stream, `launched` under PendingBuckets' mutex, `ready` anywhere; all other calls on the thread that drives
/// the steps. Lifetime: the meter outlives the work of stamps.
class StepMeter {
 public:
  /// Work for a stream: records that the stream has reached this point.
  struct Stamp {
    StepMeter* meter;
    std::uint64_t step;
    std::uint32_t bucket;
    StepEvent event;
    void operator()() const noexcept { meter->reached(*this); }
  };

  /// @param running updated with each bucket; may be null
  explicit StepMeter(std::size_t parameters, const DdpOptions& options = {},
                     std::shared_ptr<RunningBucket> running = {})
      : recorder_(capacity(parameters, options)),
        running_(std::move(running)),
        has_timeline_(options.timeline),
        is_complete_(options.timeline),
        wants_device_times_(options.timeline || options.device_times) {}

  /// Whether each ready() is recorded, and on CUDA each start and end of a bucket.
  bool is_complete() const noexcept { return is_complete_; }
  /// Whether the next steps record each ready() also without a timeline. Between steps.
  void record_every_ready(bool wanted) noexcept { is_complete_ = has_timeline_ || wanted; }
  /// Whether collectives on a device are measured.
  bool wants_device_times() const noexcept { return wants_device_times_; }

  /// Sets the buckets. Between steps.
  void plan(const BucketPlan& plan) {
    spans_ = std::vector<Span>(plan.buckets.size());
    if (running_) running_->plan(plan);
  }

  void begin() noexcept {
    const auto now = Clock::now();
    ++step_;
    end_forward(now);
    recorder_.note(step_, StepEvent::begun, 0, now);
  }

  /// Begins a pass that reduces nothing, and counts with the next step that reduces.
  void begin_unreduced() noexcept {
    end_forward(Clock::now());
    is_unreduced_ = true;
  }
  /// The next step that reduces computes nothing, and is no computing time.
  void leave_out_step() noexcept { leaves_out_ = true; }
  void finished_unreduced() noexcept {
    if (!std::exchange(is_unreduced_, false)) return;
    end_ = Clock::now();
    add(backward_, end_ - begin_);
    ++unreduced_;
  }

  void ready(std::size_t parameter) noexcept {
    if (is_complete()) {
      recorder_.note(step_, StepEvent::ready, parameter);
    }
  }
  void launched(std::size_t bucket) noexcept { recorder_.note(step_, StepEvent::launched, bucket); }

  Stamp stamp(std::size_t bucket, StepEvent event) noexcept {
    return {this, step_, static_cast<std::uint32_t>(bucket), event};
  }

  /// Call at the begin of finish().
  void waiting() noexcept {
    waiting_ = Clock::now();
    add(backward_, waiting_ - begin_);
    recorder_.note(step_, StepEvent::waiting, 0, waiting_);
  }

  /// Call at the end of finish(). `measured`: the stream has stamps, all of which have run.
  void finished(bool measured) noexcept {
    end_ = Clock::now();
    recorder_.note(step_, StepEvent::finished, 0, end_);
    const PhaseTime forward = std::exchange(forward_, {});
    const PhaseTime backward = std::exchange(backward_, {});
    const std::uint64_t unreduced = std::exchange(unreduced_, 0);
    times_.forward += forward.time;
    times_.backward += backward.time;
    times_.waiting += forward.waits + backward.waits;
    unreduced_passes_ += unreduced;
    waited_ = WaitTime::of_thread();
    const bool measures_plan = is_complete_ && !has_timeline_;
    if (!std::exchange(leaves_out_, false) && measured && !measures_plan && step_ > warm_up_steps) {
      computing_.add(step_, backward.time - backward.waits, forward.time - forward.waits, unreduced + 1);
    }
    times_.exposed += end_ - waiting_;
    if (measured) {
      add_communication();
      ++measured_steps_;
    }
  }

  /// Adds a device's times of an earlier step: duration of its collectives, the part `hidden` by computation, and the
  /// time that computation waited for the collectives.
  void measured(std::chrono::nanoseconds communication, std::chrono::nanoseconds hidden,
                std::chrono::nanoseconds exposed) noexcept {
    times_.communication += communication;
    times_.hidden += hidden;
    exposed_on_device_ = exposed_on_device_.value_or(std::chrono::nanoseconds{}) + exposed;
    ++measured_steps_;
  }

  /// Sums over the finished steps.
  StepTimes times() const noexcept {
    StepTimes times = times_;
    times.exposed = exposed_on_device_.value_or(times.exposed);
    return times;
  }

  /// Number of steps in `communication` and `hidden`, and in `exposed` if a device measured it.
  std::uint64_t measured_steps() const noexcept { return measured_steps_; }

  /// Number of passes in `forward` and `backward` besides the steps.
  std::uint64_t unreduced_passes() const noexcept { return unreduced_passes_; }

  const StepRecorder& recorder() const noexcept { return recorder_; }
  ComputingTimes& computing() noexcept { return computing_; }

  /// The number of the last step, from 1, and its duration from begin() to finished().
  std::uint64_t step() const noexcept { return step_; }
  std::chrono::nanoseconds last_duration() const noexcept { return end_ - begin_; }

 private:
  using Clock = StepRecord::Clock;

  /// A time, and the part of it in which the thread waited.
  struct PhaseTime {
    std::chrono::nanoseconds time{};
    std::chrono::nanoseconds waits{};
  };

  static constexpr std::uint64_t warm_up_steps = 20;  ///< no computing times: caches fill, libraries choose kernels
  static constexpr std::size_t untimed_records = 1024;
  static constexpr std::size_t timeline_records = std::size_t{1} << 16;

  /// With each ready(), a step has up to 4 records for each parameter.
  static constexpr std::size_t capacity(std::size_t parameters, const DdpOptions& options) noexcept {
    const std::size_t least = options.timeline ? timeline_records : untimed_records;
    return options.timeline || options.plan.is_measured() ? std::max(least, 8 * parameters) : least;
  }

  /// When the stream worked on a bucket, in the clock's ticks.
  struct Span {
    std::atomic<Clock::rep> started{0};
    std::atomic<Clock::rep> reduced{0};
  };

  /// Adds a time that ends now.
  void add(PhaseTime& phase, std::chrono::nanoseconds time) noexcept {
    const std::chrono::nanoseconds waited = WaitTime::of_thread();
    phase.time += time;
    phase.waits += std::clamp(waited - std::exchange(waited_, waited), std::chrono::nanoseconds(0), time);
  }

  void end_forward(Clock::time_point now) noexcept {
    if (end_ != Clock::time_point{}) add(forward_, now - end_);
    waited_ = WaitTime::of_thread();
    begin_ = now;
  }

  void reached(const Stamp& stamp) noexcept {
    const auto now = Clock::now();
    recorder_.note(stamp.step, stamp.event, stamp.bucket, now);
    if (stamp.event == StepEvent::started && running_) {
      running_->begin(stamp.step, stamp.bucket);
    }
    if (stamp.bucket < spans_.size()) {
      Span& span = spans_[stamp.bucket];
      (stamp.event == StepEvent::started ? span.started : span.reduced)
          .store(now.time_since_epoch().count(), std::memory_order_relaxed);
    }
  }

  void add_communication() noexcept {
    const Clock::rep waiting = waiting_.time_since_epoch().count();
    for (const Span& span : spans_) {
      const Clock::rep started = span.started.load(std::memory_order_relaxed);
      const Clock::rep reduced = span.reduced.load(std::memory_order_relaxed);
      times_.communication += Clock::duration(reduced - started);
      times_.hidden += Clock::duration(std::max<Clock::rep>(std::min(reduced, waiting) - started, 0));
    }
  }

  StepRecorder recorder_;
  std::shared_ptr<RunningBucket> running_;
  bool has_timeline_;
  bool is_complete_;
  bool wants_device_times_;
  std::vector<Span> spans_;
  StepTimes times_;
  std::optional<std::chrono::nanoseconds> exposed_on_device_;  ///< nullopt if no device has measured
  std::uint64_t measured_steps_ = 0;
  std::uint64_t step_ = 0;
  Clock::time_point begin_{};
  Clock::time_point waiting_{};
  Clock::time_point end_{};  ///< end of the previous pass; the epoch if there is none
  /// @name Since the last step's end.
  /// @{
  PhaseTime forward_;
  PhaseTime backward_;
  std::uint64_t unreduced_ = 0;
  /// @}
  std::chrono::nanoseconds waited_{};  ///< the thread's waits when a phase began
  ComputingTimes computing_;
  bool leaves_out_ = false;
  bool is_unreduced_ = false;  ///< whether the current pass reduces nothing
  std::uint64_t unreduced_passes_ = 0;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void RunningBucket::plan(const BucketPlan& plan) {
  const std::lock_guard lock(mutex_);
  buckets_.clear();
  for (const PlannedBucket& bucket : plan.buckets) {
    const std::size_t size = size_bytes(bucket.dtype);
    buckets_.push_back({bucket.bytes / size, bucket.payload_bytes / size});
  }
}

DTRAIN_DEFINED std::string RunningBucket::describe(backend::Operation operation) const {
  const std::uint64_t step = step_.load(std::memory_order_relaxed);
  const std::size_t bucket = bucket_.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  if (step == 0 || bucket >= buckets_.size()) return to_string(operation);
  const bool is_buffer = operation.kind == backend::OperationKind::broadcast;
  const std::string where = is_buffer ? "" : format_text("bucket {} of {} ", {bucket, buckets_.size()});
  if (operation.kind == backend::OperationKind::all_reduce && operation.count == buckets_[bucket].elements) {
    operation.count = buckets_[bucket].payload;
  }
  return format_text("{} ({}in step {})", {to_string(operation), where, step});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
