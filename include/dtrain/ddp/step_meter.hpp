#pragma once
/// @file
/// The step meter: how long the parts of the steps took.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/ddp/step_record.hpp"
#include "dtrain/ddp/step_recorder.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Sums over steps.
struct StepTimes {
  std::chrono::nanoseconds forward{};        ///< from the end of a step to begin(): forward pass, optimizer, data
  std::chrono::nanoseconds backward{};       ///< from begin() to finish()
  std::chrono::nanoseconds communication{};  ///< collectives running
  std::chrono::nanoseconds hidden{};         ///< of it, before finish() was called
  std::chrono::nanoseconds exposed{};        ///< in finish(): what the step is longer for
};

/// Writes the step records and adds up the times. Steady state: allocates nothing. Threads: stamps run on the
/// communication stream, `launched` under the launch queue's gate, `ready` anywhere; everything else on the thread that
/// drives the steps. Lifetime: outlives the stamps' work.
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
  /// @param is_complete whether every ready() is noted, and what costs more than a clock's reading
  StepMeter(std::size_t buckets, std::size_t records, bool is_complete = false)
      : recorder_(records), is_complete_(is_complete), spans_(buckets) {}

  bool is_complete() const noexcept { return is_complete_; }

  void replan(std::size_t buckets) { spans_ = std::vector<Span>(buckets); }

  void begin() noexcept {
    const auto now = Clock::now();
    ++step_;
    if (end_ != Clock::time_point{}) {
      forward_ = now - end_;
    }
    begin_ = now;
    recorder_.note(step_, StepEvent::begun, 0, now);
  }

  void ready(std::size_t parameter) noexcept {
    if (is_complete_) {
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
    times_.forward += forward_;
    times_.backward += waiting_ - begin_;
    times_.exposed += end_ - waiting_;
    if (measured) {
      add_communication();
    }
  }

  /// Of the steps that finished.
  const StepTimes& times() const noexcept { return times_; }

  const StepRecorder& recorder() const noexcept { return recorder_; }

 private:
  using Clock = StepRecord::Clock;

  /// When the stream was busy with a bucket, in the clock's ticks.
  struct Span {
    std::atomic<Clock::rep> started{0};
    std::atomic<Clock::rep> reduced{0};
  };

  void reached(const Stamp& stamp) noexcept {
    const auto now = Clock::now();
    recorder_.note(stamp.step, stamp.event, stamp.bucket, now);
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
  bool is_complete_;
  std::vector<Span> spans_;
  StepTimes times_;
  std::uint64_t step_ = 0;
  Clock::time_point begin_{};
  Clock::time_point waiting_{};
  Clock::time_point end_{};  ///< of the step before; the epoch where there was none
  std::chrono::nanoseconds forward_{};
};

}  // namespace DTRAIN_NAMESPACE::ddp
