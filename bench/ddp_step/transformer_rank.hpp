#pragma once
/// @file
/// A rank that computes the forward and backward passes of examples/gpt2's model, with and without
/// DistributedDataParallel.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "bench/intervals.hpp"
#include "bench/launched.hpp"
#include "dtrain/dtrain.hpp"
#include "examples/gpt2/model.hpp"

namespace bench {

/// Both models have the same weights; a rank's batch is its own. Lines go to the benchmark.
class TransformerRank {
 public:
  static constexpr gpt2::ModelShape shape{.layers = 4, .channels = 128, .heads = 4, .context = 64};
  static constexpr gpt2::Index sequences = 4;

  explicit TransformerRank(dtrain::ProcessGroup<Policy> group)
      : group_(std::move(group)),
        alone_(shape, sequences, 1),
        wrapped_(shape, sequences, 1),
        ddp_(wrapped_, group_, {.check_ready = false}) {
    shared::SplitMix64 random(100 + static_cast<std::uint64_t>(group_.rank()));
    for (gpt2::Index token = 0; token < sequences * shape.context; ++token) {
      batch_.inputs.push_back(static_cast<std::uint8_t>(random.below(gpt2::vocabulary)));
      batch_.targets.push_back(static_cast<std::uint8_t>(random.below(gpt2::vocabulary)));
    }
  }

  /// The first sample of each is a warm-up.
  void measure(int samples) {
    for (int sample = 0; sample <= samples; ++sample) {
      for (int turn = 0; turn < 2; ++turn) {
        const bool reduces = (sample + turn) % 2 == 1;
        group_.barrier();
        const std::int64_t begin = now_nanoseconds();
        reduces ? step() : compute();
        const std::int64_t end = now_nanoseconds();
        if (sample > 0) {
          tell_interval(reduces ? "step" : "computing", sample, {begin, end});
        }
      }
      check();
    }
    tell_fact("buckets", static_cast<double>(ddp_.statistics().buckets));
  }

 private:
  struct NoSink final : dtrain::Ready::Sink {
    void ready(const dtrain::ReadyGradient&) override {}
  };

  void compute() {
    NoSink sink;
    alone_.forward(batch_);
    alone_.backward(batch_, dtrain::Ready(sink));
  }

  void step() {
    wrapped_.forward(batch_);
    ddp_.backward([this](dtrain::Ready ready) { wrapped_.backward(batch_, ready); });
  }

  /// The wrapped model has the average of what the ranks computed alone.
  void check() {
    const std::vector<dtrain::Parameter> computed = alone_.parameters();
    const std::vector<dtrain::Parameter> reduced = wrapped_.parameters();
    for (std::size_t i = 0; i < computed.size(); ++i) {
      const std::span<float> mean = computed[i].gradient.as<float>();
      group_.all_reduce(mean, dtrain::ReduceOp::average);
      if (!std::ranges::equal(mean, reduced[i].gradient.as<float>(),
                              [](float a, float b) { return std::abs(a - b) <= 1e-6F; })) {
        throw dtrain::Error(dtrain::Errc::protocol, "a reduced gradient of the transformer is wrong");
      }
    }
  }

  dtrain::ProcessGroup<Policy> group_;
  gpt2::Model alone_;
  gpt2::Model wrapped_;
  dtrain::DistributedDataParallel<gpt2::Model, Policy> ddp_;
  gpt2::Batch batch_;
};

}  // namespace bench
