#pragma once
/// @file
/// How long the buckets' collectives ran on a device, and how much of that the backward pass hid.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/stream/cuda/relaxed_capture.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"
#include "dtrain/stream/cuda/timing_event.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::ddp {

/// Events with timing before and behind each bucket's collective, and where the streams that compute come to wait for
/// the last one. The host waits for none of them: a step's are read in a later step, or when statistics are asked for,
/// once they are complete. While those of several steps are not, and where a step becomes part of a graph, nothing is
/// measured. Does nothing where the meter does not want it. Threads: `started` and `reduced` one at a time, all else on
/// the thread that drives the steps. Steady state: allocates nothing.
class DeviceTimes {
 public:
  DeviceTimes(StepMeter& meter, int device) : meter_(&meter), device_(device) {}

  /// Between steps: for so many buckets. @throws Error (cuda), as what follows
  void plan(std::size_t buckets) {
    if (!meter_->wants_device_times()) {
      return;
    }
    collect();
    front_ = count_ = 0;
    for (TimedStep& step : steps_) {
      step.buckets.clear();
      for (std::size_t i = 0; i < buckets; ++i) {
        step.buckets.push_back({stream::cuda::TimingEvent(device_), stream::cuda::TimingEvent(device_)});
      }
    }
  }

  /// A step begins.
  void begin_step() noexcept {
    recording_ = nullptr;
    collect();
    under_way_ = true;
  }

  /// `stream` comes to the collective of `bucket`. Bucket 0, the first of a step, decides whether the step is measured.
  void started(std::size_t bucket, stream::cuda::StreamRef stream) {
    if (bucket == 0 && meter_->wants_device_times() && count_ < steps_.size() && !stream.is_capturing()) {
      recording_ = &at(count_);
      recording_->producers = 0;
    }
    if (recording_ != nullptr) {
      recording_->buckets[bucket].started.record(stream);
    }
  }

  void reduced(std::size_t bucket, stream::cuda::StreamRef stream) {
    if (recording_ != nullptr) {
      recording_->buckets[bucket].reduced.record(stream);
    }
  }

  /// All that `producer` computes in this step is enqueued there.
  void computed(stream::cuda::StreamRef producer) {
    if (recording_ == nullptr) {
      return;
    }
    if (recording_->producers == recording_->computed.size()) {
      recording_->computed.emplace_back(device_);
    }
    recording_->computed[recording_->producers++].record(producer);
  }

  /// All of the step is enqueued.
  void end_step() noexcept {
    count_ += recording_ != nullptr ? 1 : 0;
    recording_ = nullptr;
    under_way_ = false;
  }

  /// Adds the steps that the device is done with to the meter. Blocking: no. While a step is under way, and after one
  /// that was abandoned, nothing: threads that launch its buckets may use the same entries.
  void collect() noexcept {
    if (under_way_ || count_ == 0) {
      return;
    }
    const stream::cuda::RelaxedCapture relaxed;  // the program may be capturing on a stream of its own
    for (; count_ > 0 && is_complete(at(0)); --count_, front_ = (front_ + 1) % steps_.size()) {
      add_to_meter(at(0));
    }
  }

 private:
  struct TimedBucket {
    stream::cuda::TimingEvent started;
    stream::cuda::TimingEvent reduced;
  };
  struct TimedStep {
    std::vector<TimedBucket> buckets;
    std::vector<stream::cuda::TimingEvent> computed;  ///< of the first `producers`
    std::size_t producers = 0;
  };

  static bool is_complete(const TimedStep& step) noexcept {
    const auto end = step.computed.begin() + static_cast<std::ptrdiff_t>(step.producers);
    return step.buckets.back().reduced.is_complete() &&
           std::all_of(step.computed.begin(), end, [](const auto& event) { return event.is_complete(); });
  }

  void add_to_meter(const TimedStep& step) noexcept {
    using std::chrono::nanoseconds;
    const stream::cuda::TimingEvent& origin = step.buckets.front().started;
    std::optional<nanoseconds> computed;
    for (std::size_t i = 0; i < step.producers; ++i) {
      const auto at = between(origin, step.computed[i]);
      computed = at && computed ? std::max(*at, *computed) : at;
    }
    if (!computed) {
      return;
    }
    nanoseconds communication{};
    nanoseconds hidden{};
    nanoseconds end{};
    for (const TimedBucket& bucket : step.buckets) {
      const auto started = between(origin, bucket.started);
      const auto reduced = between(origin, bucket.reduced);
      if (!started || !reduced) {
        return;
      }
      communication += *reduced - *started;
      hidden += std::max(std::min(*reduced, *computed) - *started, nanoseconds{});
      end = *reduced;
    }
    meter_->measured(communication, hidden, std::max(end - *computed, nanoseconds{}));
  }

  TimedStep& at(std::size_t index) noexcept { return steps_[(front_ + index) % steps_.size()]; }

  StepMeter* meter_;
  int device_;
  std::array<TimedStep, 4> steps_;  ///< from front_ on, `count_` that the device may still be at
  std::size_t front_ = 0;
  std::size_t count_ = 0;
  TimedStep* recording_ = nullptr;  ///< the one under way, where it is measured
  bool under_way_ = false;          ///< for the thread that drives the steps, and no other
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
