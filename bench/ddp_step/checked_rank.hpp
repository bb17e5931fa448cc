#pragma once
/// @file
/// A rank that trains in steps with and without the check of gradients that debug programs make
/// (DdpOptions::check_ready).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "bench/intervals.hpp"
#include "bench/launched.hpp"
#include "bench/shape_model.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

/// Trains a model of shapes with the least computing that a training can have: the backward pass reads each weight and
/// writes each gradient once, and the optimizer updates each weight once. The gradients are bound, which the check
/// reads most often. Lines go to the benchmark.
class CheckedRank {
 public:
  CheckedRank(const dtrain::ProcessGroup<Policy>& group, const std::vector<std::int64_t>& sizes)
      : group_(group), unchecked_(sizes, group_, {.check_ready = false}), checked_(sizes, group_, {}) {
    if (!dtrain::is_debug_program()) {
      throw dtrain::Error(dtrain::Errc::usage, "gradients are checked in debug programs, and this one is none");
    }
  }

  /// The first sample of each is a warm-up.
  void measure(int samples) {
    for (int sample = 0; sample <= samples; ++sample) {
      for (int turn = 0; turn < 2; ++turn) {
        const bool checks = (sample + turn) % 2 == 1;
        group_.barrier();
        const std::int64_t begin = now_nanoseconds();
        (checks ? checked_ : unchecked_).step();
        const std::int64_t end = now_nanoseconds();
        if (sample > 0) {
          tell_interval(checks ? "checked" : "unchecked", sample, {begin, end});
        }
      }
    }
    tell_fact("buckets", static_cast<double>(checked_.ddp.statistics().buckets));
  }

 private:
  struct Training {
    Training(const std::vector<std::int64_t>& sizes, const dtrain::ProcessGroup<Policy>& group,
             const dtrain::DdpOptions& options)
        : model(sizes), ddp(model, group, options) {
      for (const dtrain::Parameter& parameter : model.parameters())
        std::ranges::fill(parameter.value.as<float>(), 1.0F);
    }

    void step() {
      ddp.backward([this](dtrain::Ready ready) {
        for (std::size_t i = model.parameters().size(); i-- > 0;) {
          std::ranges::transform(values(i), model.gradient(i).begin(), [](float value) { return 0.5F * value; });
          ready(i);
        }
      });
      for (std::size_t i = 0; i < model.parameters().size(); ++i) {
        std::ranges::transform(values(i), model.gradient(i), values(i).begin(),
                               [](float value, float gradient) { return value - 0.01F * gradient; });
      }
    }

    std::span<float> values(std::size_t i) { return model.parameters()[i].value.as<float>(); }

    ShapeModel model;
    dtrain::DistributedDataParallel<ShapeModel, Policy> ddp;
  };

  dtrain::ProcessGroup<Policy> group_;
  Training unchecked_;
  Training checked_;
};

}  // namespace bench
