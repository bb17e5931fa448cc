#pragma once
/// @file
/// A rank whose layers are computed without using the core, with buckets of a measured plan and of each size of a
/// sweep.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/intervals.hpp"
#include "bench/shape_model.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

/// What a rank computes.
struct PlanModel {
  int layers = 50;
  std::int64_t layer_elements = std::int64_t{512} * 1024;
  std::chrono::microseconds layer_time{18'000};

  std::uint64_t bytes() const noexcept {
    return static_cast<std::uint64_t>(layers) * static_cast<std::uint64_t>(layer_elements) * sizeof(float);
  }
  double compute_seconds() const noexcept { return layers * std::chrono::duration<double>(layer_time).count(); }

  /// Sizes of buckets: the defaults, a bucket for each layer, and more layers in one until all are.
  /// @param is_short leaves out some
  std::vector<dtrain::ddp::BucketCaps> sweep(bool is_short) const {
    const std::size_t layer = static_cast<std::size_t>(layer_elements) * sizeof(float);
    std::vector<dtrain::ddp::BucketCaps> sizes{{}, {0, 0}};
    if (is_short) {
      for (const std::size_t layers_each : std::to_array<std::size_t>({2, 4, 8, 50}))
        sizes.push_back({layers_each * layer, layers_each * layer});
      return sizes;
    }
    for (const std::size_t layers_each : std::to_array<std::size_t>({2, 4, 8, 16, 50})) {
      const std::size_t bytes = layers_each * layer;
      sizes.push_back({std::min(layer, bytes), bytes});
      sizes.push_back({bytes, bytes});
    }
    return sizes;
  }
};

/// What a rank tells of its intervals with given sizes: "step/FIRST/BUCKET".
inline std::string sweep_kind(const dtrain::ddp::BucketCaps& caps) {
  return "step/" + std::to_string(caps.first_bucket_bytes) + "/" + std::to_string(caps.bucket_bytes);
}

template <class P>
class PlanRank {
 public:
  PlanRank(dtrain::ProcessGroup<P> group, const PlanModel& model, bool is_short)
      : group_(std::move(group)), model_(model), is_short_(is_short) {}

  void measure(int samples) {
    constexpr int settled_steps = 34;
    measure_with({.plan = dtrain::PlanChoice::measured()}, settled_steps, samples, "step/measured", "communication");
    for (const dtrain::ddp::BucketCaps& caps : model_.sweep(is_short_)) {
      measure_with({.bucket_bytes = caps.bucket_bytes, .first_bucket_bytes = caps.first_bucket_bytes}, 2, samples,
                   sweep_kind(caps), "");
    }
  }

 private:
  /// @param warm_up steps that are not measured @param communication kind of steps that compute nothing; empty: none
  void measure_with(dtrain::DdpOptions options, int warm_up, int samples, const std::string& step,
                    const std::string& communication) {
    ShapeModel model(std::vector<std::int64_t>(static_cast<std::size_t>(model_.layers), model_.layer_elements));
    dtrain::DistributedDataParallel ddp{model, group_, options};
    const auto compute = [&](const dtrain::Ready& ready) {
      auto wake = std::chrono::steady_clock::now();
      for (auto i = static_cast<std::size_t>(model_.layers); i > 0; --i) {
        wake += model_.layer_time;
        std::this_thread::sleep_until(wake);
        ready(i - 1);
      }
    };
    for (int sample = 1 - warm_up; sample <= samples; ++sample) {
      run(ddp, model, sample, step, compute);
    }
    tell_fact((step + "/buckets").c_str(), static_cast<double>(ddp.statistics().buckets));
    if (const auto* const planner = dtrain::ddp::DriverAccess::of(ddp).reducer->planner()) {
      tell_fact((step + "/variant").c_str(), static_cast<double>(planner->variant()));
    }
    for (int sample = 1; sample <= samples && !communication.empty(); ++sample) {
      run(ddp, model, sample, communication, [&](const dtrain::Ready& ready) { model.announce(ready); });
    }
  }

  template <class Ddp, class Backward>
  void run(Ddp& ddp, ShapeModel& model, int sample, const std::string& kind, Backward backward) {
    const auto value = [&](std::size_t i, float rank) { return rank + static_cast<float>(i % 7); };
    for (std::size_t i = 0; i < static_cast<std::size_t>(model_.layers); ++i) {
      std::ranges::fill(model.gradient(i), value(i, static_cast<float>(group_.rank())));
    }
    group_.barrier();
    const std::int64_t begin = now_nanoseconds();
    ddp.backward(backward);
    const std::int64_t end = now_nanoseconds();
    if (sample > 0) tell_interval(kind.c_str(), sample, {begin, end});
    const float mean_rank = static_cast<float>(group_.world_size() - 1) / 2;
    for (std::size_t i = 0; i < static_cast<std::size_t>(model_.layers); ++i) {
      for (const float reduced : model.gradient(i)) {
        if (reduced != value(i, mean_rank)) {
          throw dtrain::Error(dtrain::Errc::protocol, "a reduced gradient is wrong");
        }
      }
    }
  }

  dtrain::ProcessGroup<P> group_;
  PlanModel model_;
  bool is_short_;
};

}  // namespace bench
