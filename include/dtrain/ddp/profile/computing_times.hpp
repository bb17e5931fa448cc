#pragma once
/// @file
/// ComputingTimes of a StepMeter: how long the rank computed in each step; their quartiles over windows of steps.

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A window has 50 steps and 10 s at least: shorter ones would count a pause of some steps as a slow rank. Threads:
/// add() in one; latest() in one at a time.
class ComputingTimes {
 public:
  using Clock = Deadline::Clock;
  using Microseconds = std::chrono::duration<float, std::micro>;

  static constexpr std::size_t least_steps = 50;
  static constexpr std::chrono::seconds least_time{10};

  /// A step's computing time, in backward passes and outside. Four stores.
  void add(std::uint64_t step, Microseconds backward, Microseconds outside, std::uint64_t passes = 1) noexcept {
    const std::uint64_t number = added_.load(std::memory_order_relaxed);
    const std::array<float, 2> parts{backward.count(), outside.count()};
    ring_[number % ring_.size()].store(std::bit_cast<std::uint64_t>(parts), std::memory_order_relaxed);
    step_.store(step, std::memory_order_relaxed);
    passes_.store(passes_.load(std::memory_order_relaxed) + passes, std::memory_order_relaxed);
    added_.store(number + 1, std::memory_order_release);
  }

  /// The last whole window; its `steps` is 0 before there is one. Call it once a second: of more than 1,000 steps
  /// between two calls the last ones count. @throws std::bad_alloc
  const rendezvous::ComputingWindow& latest(Clock::time_point now);

 private:
  /// Times of one window that are kept; of a longer one every second, fourth ... is.
  static constexpr std::size_t most_kept = 4096;

  void take();
  void close();

  std::array<std::atomic<std::uint64_t>, 1024> ring_{};  ///< two floats each
  std::atomic<std::uint64_t> added_{0};
  std::atomic<std::uint64_t> step_{0};    ///< the step that was added last
  std::atomic<std::uint64_t> passes_{0};  ///< passes of all steps
  /// @name Of the thread that calls latest().
  /// @{
  std::uint64_t taken_ = 0;
  std::uint64_t stride_ = 1;
  std::vector<float> backward_, outside_;
  std::uint64_t steps_ = 0;  ///< steps of the window under way
  std::uint64_t last_step_ = 0;
  std::uint64_t last_passes_ = 0;   ///< passes until last_step_
  std::uint64_t first_passes_ = 0;  ///< passes before the window under way
  std::uint64_t first_step_ = 0;    ///< 0: it has none
  Clock::time_point began_{};
  rendezvous::ComputingWindow latest_{};
  /// @}
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// The value of which `share` of the values are less, in nanoseconds. @pre values is not empty
inline std::uint64_t quantile_of_microseconds(std::vector<float>& values, double share) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), at, values.end());
  return static_cast<std::uint64_t>(std::clamp(1e3 * static_cast<double>(*at), 1.0, 1e18));
}

}  // namespace detail

DTRAIN_DEFINED void ComputingTimes::take() {
  constexpr std::uint64_t readable = 1000;  // the others may be overwritten while they are read
  std::uint64_t added = added_.load(std::memory_order_acquire);
  for (int tries = 0; tries < 100; ++tries) {  // until no step was added between the readings
    last_step_ = step_.load(std::memory_order_relaxed);
    last_passes_ = passes_.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    const std::uint64_t before = std::exchange(added, added_.load(std::memory_order_acquire));
    if (before == added) break;
  }
  const std::uint64_t first = std::max(taken_, added - std::min(added, readable));
  steps_ += first - std::exchange(taken_, first);  // steps that are lost
  if (first_step_ == 0 && taken_ != added) first_step_ = last_step_ + 1 - (added - taken_);
  for (; taken_ != added; ++taken_) {
    if (++steps_ % stride_ != 0) continue;
    const std::uint64_t both = ring_[taken_ % ring_.size()].load(std::memory_order_relaxed);
    const auto [backward, outside] = std::bit_cast<std::array<float, 2>>(both);
    backward_.push_back(backward);
    outside_.push_back(outside);
  }
  if (backward_.size() < most_kept) return;
  stride_ *= 2;
  for (std::vector<float>* const each : {&backward_, &outside_}) {
    for (std::size_t i = 0; i < each->size() / 2; ++i)
      (*each)[i] = (*each)[2 * i + 1];
    each->resize(each->size() / 2);
  }
}

DTRAIN_DEFINED void ComputingTimes::close() {
  std::vector<float> sums(backward_);
  for (std::size_t i = 0; i < sums.size(); ++i)
    sums[i] += outside_[i];
  latest_ = {.first_step = first_step_,
             .last_step = last_step_,
             .steps = sums.size(),
             .lower_quartile = detail::quantile_of_microseconds(sums, 0.25),
             .median = detail::quantile_of_microseconds(sums, 0.5),
             .upper_quartile = detail::quantile_of_microseconds(sums, 0.75),
             .backward = detail::quantile_of_microseconds(backward_, 0.5),
             .outside = detail::quantile_of_microseconds(outside_, 0.5)};
  const std::uint64_t passes = last_passes_ - std::exchange(first_passes_, last_passes_);
  latest_.passes = static_cast<std::uint32_t>(std::min<std::uint64_t>(1000 * passes / steps_, 1'000'000'000));
  backward_.clear();
  outside_.clear();
  steps_ = first_step_ = 0;
  stride_ = 1;
}

DTRAIN_DEFINED const rendezvous::ComputingWindow& ComputingTimes::latest(Clock::time_point now) {
  take();
  if (first_step_ == 0 || began_ == Clock::time_point{}) {
    began_ = now;
  } else if (steps_ >= least_steps && now - began_ >= least_time) {
    close();
    began_ = now;
  }
  return latest_;
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
