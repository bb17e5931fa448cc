#pragma once
/// @file
/// DeviceTimes of a CudaGradientCopier: durations of the buckets' collectives, and their part that the backward pass
/// hid.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::ddp {

/// Owns a cudaEvent_t with timing, which costs the device more than an Event. Threads: any, except during a record.
class TimingEvent {
 public:
  /// @throws Error (cuda)
  explicit TimingEvent(int device) {
    const stream::cuda::DeviceGuard guard(device);
    cudaEvent_t event = nullptr;
    stream::cuda::check(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
    event_.reset(event);
  }

  /// Enqueues the point on a stream of the device that is not captured. @throws Error (cuda)
  void record(stream::cuda::StreamRef stream) {
    stream::cuda::check(cudaEventRecord(event_.get(), stream.native()), "cudaEventRecord");
  }

  /// Also false if the device has failed. Not while a stream is being captured, except under RelaxedCapture.
  bool is_complete() const noexcept { return stream::cuda::quiet(cudaEventQuery(event_.get())); }

  /// Device time between two events, negative if `to` was first. Empty if an event is not complete, or the time is
  /// unknown.
  friend std::optional<std::chrono::nanoseconds> between(const TimingEvent& from, const TimingEvent& to) noexcept {
    float milliseconds = 0;
    if (!stream::cuda::quiet(cudaEventElapsedTime(&milliseconds, from.event_.get(), to.event_.get()))) {
      return std::nullopt;
    }
    return std::chrono::nanoseconds(
        static_cast<std::chrono::nanoseconds::rep>(static_cast<double>(milliseconds) * 1e6));
  }

 private:
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, stream::cuda::ReleasedBy<cudaEventDestroy>> event_;
};

/// Records timing events on the communication stream before and after each bucket's collective, without the copies that
/// pack and unpack it; where each computing stream begins to wait for the step; and where this wait ends, once all
/// gradients are unpacked. The host never waits for an event, and reads a step's events once they are complete: in a
/// later step, or when statistics are requested.
/// Not measured: steps captured in a graph, steps while four earlier steps are unread, and all steps if the meter does
/// not want device times.
/// Threads: `started` and `reduced` one at a time; all other calls on the thread that drives the steps.
/// Steady state: allocates nothing.
class DeviceTimes {
 public:
  DeviceTimes(StepMeter& meter, int device) : meter_(&meter), device_(device) {}

  /// Prepares events for the number of buckets. Between steps. @throws Error (cuda), as the members below
  void plan(std::size_t buckets) {
    if (!meter_->wants_device_times()) {
      return;
    }
    collect();
    front_ = count_ = 0;
    for (TimedStep& step : steps_) {
      step.ended.emplace(device_);
      step.buckets.clear();
      for (std::size_t i = 0; i < buckets; ++i) {
        step.buckets.push_back({TimingEvent(device_), TimingEvent(device_)});
      }
    }
  }

  void begin_step() noexcept {
    recording_ = nullptr;
    collect();
    under_way_ = true;
  }

  /// Records the start of the collective of `bucket`. Bucket 0, a step's first, decides whether the step is measured.
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

  /// Records the end of the step's last copy.
  void ended(stream::cuda::StreamRef stream) {
    if (recording_ != nullptr) {
      recording_->ended->record(stream);
    }
  }

  /// Records the end of the step's computation on `producer`.
  void computed(stream::cuda::StreamRef producer) {
    if (recording_ == nullptr) {
      return;
    }
    if (recording_->producers == recording_->computed.size()) {
      recording_->computed.emplace_back(device_);
    }
    recording_->computed[recording_->producers++].record(producer);
  }

  /// Call when all work of the step is enqueued.
  void end_step() noexcept {
    count_ += recording_ != nullptr ? 1 : 0;
    recording_ = nullptr;
    under_way_ = false;
  }

  /// Adds the steps that the device has completed to the meter. Blocking: no. No effect while a step is open or after
  /// an abandoned step, because threads that launch buckets may use the same entries.
  void collect() noexcept {
    if (under_way_ || count_ == 0) {
      return;
    }
    const stream::cuda::RelaxedCapture relaxed;  // the program may be capturing on another stream
    for (; count_ > 0 && is_complete(at(0)); --count_, front_ = (front_ + 1) % steps_.size()) {
      add_to_meter(at(0));
    }
  }

 private:
  struct TimedBucket {
    TimingEvent started;
    TimingEvent reduced;
  };
  struct TimedStep {
    std::vector<TimedBucket> buckets;
    std::vector<TimingEvent> computed;  ///< only the first `producers` are used
    std::size_t producers = 0;
    std::optional<TimingEvent> ended;
  };

  static bool is_complete(const TimedStep& step) noexcept {
    const auto end = step.computed.begin() + static_cast<std::ptrdiff_t>(step.producers);
    return step.ended->is_complete() &&
           std::all_of(step.computed.begin(), end, [](const auto& event) { return event.is_complete(); });
  }

  void add_to_meter(const TimedStep& step) noexcept {
    using std::chrono::nanoseconds;
    const TimingEvent& origin = step.buckets.front().started;
    std::optional<nanoseconds> computed;
    for (std::size_t i = 0; i < step.producers; ++i) {
      const auto at = between(origin, step.computed[i]);
      computed = at && computed ? std::max(*at, *computed) : at;
    }
    const auto ended = between(origin, *step.ended);
    if (!computed || !ended) {
      return;
    }
    nanoseconds communication{};
    nanoseconds hidden{};
    for (const TimedBucket& bucket : step.buckets) {
      const auto started = between(origin, bucket.started);
      const auto reduced = between(origin, bucket.reduced);
      if (!started || !reduced) {
        return;
      }
      communication += *reduced - *started;
      hidden += std::max(std::min(*reduced, *computed) - *started, nanoseconds{});
    }
    meter_->measured(communication, hidden, std::max(*ended - *computed, nanoseconds{}));
  }

  TimedStep& at(std::size_t index) noexcept { return steps_[(front_ + index) % steps_.size()]; }

  StepMeter* meter_;
  int device_;
  std::array<TimedStep, 4> steps_;  ///< a ring: `count_` steps from front_ on are not yet read
  std::size_t front_ = 0;
  std::size_t count_ = 0;
  TimedStep* recording_ = nullptr;  ///< the current step; null if it is not measured
  bool under_way_ = false;          ///< used by the thread that drives the steps only
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
