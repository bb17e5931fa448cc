#pragma once
/// @file
/// The step meter: how long the parts of the steps took.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/ddp/profile/running_bucket.hpp"
#include "dtrain/ddp/profile/step_record.hpp"
#include "dtrain/ddp/profile/step_recorder.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Sums over steps.
struct StepTimes {
  /// From the end of a pass to begin(): forward pass, optimizer, data. Passes under no_sync() count, as in `backward`.
  std::chrono::nanoseconds forward{};
  std::chrono::nanoseconds backward{};       ///< from begin() to finish()
  std::chrono::nanoseconds communication{};  ///< collectives running
  std::chrono::nanoseconds hidden{};         ///< of it, before finish() was called; on a device, while it computed
  std::chrono::nanoseconds exposed{};        ///< in finish(), on a device behind it: what the step is longer for
};

/// What a meter takes note of beside what costs a clock's reading.
struct Metering {
  bool every_ready = false;                  ///< and what else makes the records complete
  bool device_times = false;                 ///< of collectives that run on a device
  std::shared_ptr<RunningBucket> running{};  ///< is updated with each bucket; may be null
};

/// Writes the step records and adds up the times. Steady state: allocates nothing. Threads: stamps run on the
/// communication stream, `launched` under the bucket queue's mutex, `ready` anywhere; everything else on the thread
/// that drives the steps. Lifetime: outlives the stamps' work.
class StepMeter {
 public:
  /// Work for a stream: notes that it came to this place.
  struct Stamp {
    StepMeter* meter;
    std::uint64_t step;
    std::uint32_t bucket;
    StepEvent event;
    void operator()() const noexcept { meter->reached(*this); }
  };

  /// @param records that the ring holds
  StepMeter(std::size_t buckets, std::size_t records, Metering metering = {})
      : recorder_(records), metering_(std::move(metering)), spans_(buckets) {}

  bool is_complete() const noexcept { return metering_.every_ready; }
  bool wants_device_times() const noexcept { return metering_.device_times; }

  /// Between steps.
  void plan(const BucketPlan& plan) {
    spans_ = std::vector<Span>(plan.buckets.size());
    if (metering_.running) metering_.running->plan(plan);
  }

  void begin() noexcept {
    const auto now = Clock::now();
    ++step_;
    end_forward(now);
    recorder_.note(step_, StepEvent::begun, 0, now);
  }

  /// The same for a pass that reduces nothing: it counts with the step that reduces what it leaves.
  void begin_unreduced() noexcept {
    end_forward(Clock::now());
    is_unreduced_ = true;
  }
  void finished_unreduced() noexcept {
    if (!std::exchange(is_unreduced_, false)) return;
    end_ = Clock::now();
    backward_ += end_ - begin_;
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

  /// finish() was called.
  void waiting() noexcept {
    waiting_ = Clock::now();
    recorder_.note(step_, StepEvent::waiting, 0, waiting_);
  }

  /// finish() is done: every stamp of the step has been passed, where the stream has any (`measured`).
  void finished(bool measured) noexcept {
    end_ = Clock::now();
    recorder_.note(step_, StepEvent::finished, 0, end_);
    times_.forward += std::exchange(forward_, {});
    times_.backward += std::exchange(backward_, {}) + (waiting_ - begin_);
    unreduced_passes_ += std::exchange(unreduced_, 0);
    times_.exposed += end_ - waiting_;
    if (measured) {
      add_communication();
      ++measured_steps_;
    }
  }

  /// A device's times of an earlier step: collectives ran so long, `hidden` of it while it computed, and computing
  /// had to wait for them so long.
  void measured(std::chrono::nanoseconds communication, std::chrono::nanoseconds hidden,
                std::chrono::nanoseconds exposed) noexcept {
    times_.communication += communication;
    times_.hidden += hidden;
    exposed_on_device_ = exposed_on_device_.value_or(std::chrono::nanoseconds{}) + exposed;
    ++measured_steps_;
  }

  /// Of the steps that finished.
  StepTimes times() const noexcept {
    StepTimes times = times_;
    times.exposed = exposed_on_device_.value_or(times.exposed);
    return times;
  }

  /// Those that `communication` and `hidden` are sums over, and `exposed` where a device measured it.
  std::uint64_t measured_steps() const noexcept { return measured_steps_; }

  /// Those that `forward` and `backward` are sums over besides the steps.
  std::uint64_t unreduced_passes() const noexcept { return unreduced_passes_; }

  const StepRecorder& recorder() const noexcept { return recorder_; }

 private:
  using Clock = StepRecord::Clock;

  /// When the stream was busy with a bucket, in the clock's ticks.
  struct Span {
    std::atomic<Clock::rep> started{0};
    std::atomic<Clock::rep> reduced{0};
  };

  void end_forward(Clock::time_point now) noexcept {
    if (end_ != Clock::time_point{}) {
      forward_ += now - end_;
    }
    begin_ = now;
  }

  void reached(const Stamp& stamp) noexcept {
    const auto now = Clock::now();
    recorder_.note(stamp.step, stamp.event, stamp.bucket, now);
    if (stamp.event == StepEvent::started && metering_.running) {
      metering_.running->begin(stamp.step, stamp.bucket);
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
  Metering metering_;
  std::vector<Span> spans_;
  StepTimes times_;
  std::optional<std::chrono::nanoseconds> exposed_on_device_;  ///< nothing where no device has measured
  std::uint64_t measured_steps_ = 0;
  std::uint64_t step_ = 0;
  Clock::time_point begin_{};
  Clock::time_point waiting_{};
  Clock::time_point end_{};  ///< of the pass before; the epoch where there was none
  /// @name Since the last step's end.
  /// @{
  std::chrono::nanoseconds forward_{};
  std::chrono::nanoseconds backward_{};  ///< of passes that reduced nothing
  std::uint64_t unreduced_ = 0;
  /// @}
  bool is_unreduced_ = false;  ///< the pass that is under way
  std::uint64_t unreduced_passes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::ddp
