#pragma once
/// @file
/// A rank that takes steps with forward passes, which wait for the weights of each layer, with and without
/// overlap_forward.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench/intervals.hpp"
#include "bench/overlap/overlap_rank.hpp"
#include "bench/shape_model.hpp"
#include "bench/sharded/owning_model.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

/// A forward pass takes half as long as a backward pass.
inline constexpr std::chrono::microseconds forward_layer_time = std::chrono::microseconds(layer_time) / 2;

/// The layers of overlap_bench, and a sharded optimizer. Neither pass uses the core.
template <class P, class Stage>
class ForwardTraining {
 public:
  using Model = std::conditional_t<Stage::divides_gradients, OwningModel, ShapeModel>;

  ForwardTraining(const dtrain::ProcessGroup<P>& group, bool overlaps)
      : ddp_(model_, group), optimizer_(ddp_, dtrain::optimizers::AdamW{}, Stage{.overlap_forward = overlaps}) {}

  void step(float gradient) {
    forward();
    ddp_.backward([&](const dtrain::Ready& ready) { backward(gradient, ready); }, optimizer_);
  }

  /// Blocking: until all weights have come.
  void wait() { optimizer_.wait(); }

  /// Whether all weights are those of another training.
  template <class Other>
  bool has_weights_of(Other& other) {
    for (std::size_t i = 0; i < layers; ++i) {
      if (!std::ranges::equal(weights(i), other.weights(i))) return false;
    }
    return true;
  }
  std::span<const float> weights(std::size_t layer) { return model_.parameters()[layer].value.template as<float>(); }

 private:
  void forward() {
    auto wake = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < layers; ++i) {
      ddp_.wait_for(i);
      wake = std::max(wake, std::chrono::steady_clock::now()) + forward_layer_time;
      std::this_thread::sleep_until(wake);
    }
  }

  void backward(float gradient, const dtrain::Ready& ready) {
    auto wake = std::chrono::steady_clock::now();
    for (std::size_t i = layers; i-- > 0;) {
      std::ranges::fill(model_.gradient(i), gradient);
      wake += layer_time;
      std::this_thread::sleep_until(wake);
      ready(i);
    }
  }

  Model model_{std::vector<std::int64_t>(layers, layer_elements)};
  dtrain::DistributedDataParallel<Model, P> ddp_;
  dtrain::ShardedOptimizer<dtrain::optimizers::AdamW, typename P::ChannelBackend::Communicator, Stage> optimizer_;
};

inline constexpr int steps_of_a_sample = 2;

/// Tells of each training how long its steps take, after one that is not timed: the weights of the last step come after
/// the time, those of the one before it within.
template <class P>
void measure_forward(const dtrain::ProcessGroup<P>& group, int samples) {
  ForwardTraining<P, dtrain::zero::States> states(group, false);
  ForwardTraining<P, dtrain::zero::States> overlapped_states(group, true);
  ForwardTraining<P, dtrain::zero::Gradients> gradients(group, false);
  ForwardTraining<P, dtrain::zero::Gradients> overlapped_gradients(group, true);
  for (int sample = 0; sample < samples; ++sample) {
    const auto measure = [&](const char* name, auto& training) {
      const auto step = [&](int number) { training.step(static_cast<float>(1 + group.rank() + number + sample % 5)); };
      step(0);
      group.barrier();
      const std::int64_t begin = now_nanoseconds();
      for (int number = 1; number <= steps_of_a_sample; ++number) {
        step(number);
      }
      tell_interval(name, sample, {begin, now_nanoseconds()});
      training.wait();
    };
    measure("states", states);
    measure("overlapped-states", overlapped_states);
    measure("gradients", gradients);
    measure("overlapped-gradients", overlapped_gradients);
    if (!states.has_weights_of(overlapped_states) || !states.has_weights_of(gradients) ||
        !states.has_weights_of(overlapped_gradients)) {
      throw dtrain::Error(dtrain::Errc::protocol, "the weights of steps with overlap_forward are wrong");
    }
  }
}

}  // namespace bench
