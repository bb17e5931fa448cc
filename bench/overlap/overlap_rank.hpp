#pragma once
/// @file
/// A rank whose backward pass takes as long as 50 layers of 2 MiB that take 18 ms each, and what it exposes of the
/// communication.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/intervals.hpp"
#include "bench/launched.hpp"
#include "bench/shape_model.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

inline constexpr const char* no_timeline = "-";
inline constexpr int layers = 50;
inline constexpr std::int64_t layer_elements = std::int64_t{512} * 1024;
inline constexpr std::uint64_t all_bytes = std::uint64_t{layers} * layer_elements * sizeof(float);
inline constexpr std::chrono::milliseconds layer_time(18);
inline constexpr double compute_seconds = layers * std::chrono::duration<double>(layer_time).count();

/// One rank, whose layers are computed without using the core.
template <class P>
class OverlapRank {
 public:
  /// @param timeline where rank 0 writes what the last step did on every rank, or no_timeline
  /// @param hooks none, or the one that reduces the gradients
  /// @param allowed relative error of a reduced gradient
  template <class... Hook>
  explicit OverlapRank(dtrain::ProcessGroup<P> group, std::string timeline, float allowed = 0, Hook&&... hooks)
      : group_(std::move(group)),
        timeline_(std::move(timeline)),
        allowed_(allowed),
        model_(std::vector<dtrain::Shape>(layers, {512, layer_elements / 512})),
        ddp_(model_, group_, {.timeline = timeline_ != no_timeline}, std::forward<Hook>(hooks)...) {}

  /// The first sample of each is a warm-up.
  void measure(int samples) {
    for (int sample = 0; sample <= samples; ++sample) {
      run("step", sample, [this](const dtrain::Ready& ready) { compute(ready); });
      run("communication", sample, [this](const dtrain::Ready& ready) { model_.announce(ready); });
    }
    tell_fact("buckets", static_cast<double>(ddp_.statistics().buckets));
    if (timeline_ != no_timeline) {
      run("step", 0, [this](const dtrain::Ready& ready) { compute(ready); });
      std::vector<std::string> names;
      for (const dtrain::Parameter& parameter : model_.parameters()) {
        names.push_back(parameter.name);
      }
      dtrain::write_timeline(group_, timeline_, ddp_.records(ddp_.statistics().steps), names);
    }
  }

 private:
  template <class Backward>
  void run(const char* kind, int sample, Backward backward) {
    for (std::size_t i = 0; i < layers; ++i) {
      std::ranges::fill(model_.gradient(i), value(sample, i, static_cast<float>(group_.rank())));
    }
    group_.barrier();
    const std::int64_t begin = now_nanoseconds();
    ddp_.backward(backward);
    const std::int64_t end = now_nanoseconds();
    if (sample > 0) {
      tell_interval(kind, sample, {begin, end});
    }
    const float mean_rank = static_cast<float>(group_.world_size() - 1) / 2;
    for (std::size_t i = 0; i < layers; ++i) {
      for (const float reduced : model_.gradient(i)) {
        const float expected = value(sample, i, mean_rank);
        if (!(std::abs(reduced - expected) <= allowed_ * expected)) {
          throw dtrain::Error(dtrain::Errc::protocol, "a reduced gradient is wrong");
        }
      }
    }
  }

  void compute(const dtrain::Ready& ready) const {
    auto wake = std::chrono::steady_clock::now();
    for (std::size_t i = layers; i > 0; --i) {
      wake += layer_time;
      std::this_thread::sleep_until(wake);
      ready(i - 1);
    }
  }

  static float value(int sample, std::size_t gradient, float rank) noexcept {
    return rank + static_cast<float>(sample % 5) + static_cast<float>(gradient % 7);
  }

  dtrain::ProcessGroup<P> group_;
  std::string timeline_;
  float allowed_;
  ShapeModel model_;
  dtrain::DistributedDataParallel<ShapeModel, P> ddp_;
};

}  // namespace bench
