#pragma once
/// @file
/// A rank that takes steps with AdamW whole on every rank, with ShardedOptimizer, and with its second stage, in turns.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "bench/intervals.hpp"
#include "bench/overlap/overlap_rank.hpp"
#include "bench/shape_model.hpp"
#include "bench/sharded/owning_model.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

/// One rank: its lines go to the benchmark.
template <class P>
class ShardRank {
 public:
  /// @param computes whether the backward pass takes time: then early_update is measured too. Else that of a whole
  /// optimizer whose model has gradients of its own, as it has in stage 2.
  ShardRank(dtrain::ProcessGroup<P> group, const std::vector<std::int64_t>& sizes, bool computes)
      : group_(std::move(group)), sizes_(sizes), computes_(computes) {}

  /// The first sample of each is a warm-up.
  void measure(int samples) {
    Whole<ShapeModel> whole(*this);
    Training<ShapeModel> sharded(*this);
    Training<OwningModel> divided(*this);
    dtrain::ShardedOptimizer states{sharded.ddp, rule_};
    dtrain::ShardedOptimizer gradients{divided.ddp, rule_, {.stage = 2}};
    std::vector<std::function<void(int)>> turns;
    turns.emplace_back([&](int sample) { step("whole", sample, whole.training, [&] { whole.step(*this, sample); }); });
    turns.emplace_back([&](int sample) { step("sharded", sample, sharded, [&] { sharded.step(*this, states); }); });
    turns.emplace_back([&](int sample) { step("divided", sample, divided, [&] { divided.step(*this, gradients); }); });
    std::optional<Freeing> freeing;
    std::optional<Whole<OwningModel>> owning;
    if (computes_) {
      freeing.emplace(*this);
      turns.emplace_back([&](int sample) {
        step("freeing", sample, freeing->training, [&] { freeing->training.step(*this, freeing->optimizer); });
      });
    } else {
      owning.emplace(*this);
      turns.emplace_back(
          [&](int sample) { step("owning", sample, owning->training, [&] { owning->step(*this, sample); }); });
    }
    for (int sample = 0; sample <= samples; ++sample) {
      for (std::size_t turn = 0; turn < turns.size(); ++turn)
        turns[(static_cast<std::size_t>(sample) + turn) % turns.size()](sample);
      check(whole.training.model, sharded.model);
      check(whole.training.model, divided.model);
      check(whole.training.model, computes_ ? freeing->training.model : owning->training.model);
    }
    tell_fact("state", static_cast<double>(states.state_bytes()));
    tell_fact("gradients", static_cast<double>(gradients.gradient_bytes()));
    tell_fact("arena", static_cast<double>(divided.ddp.plan().arena_bytes));
  }

 private:
  /// A wrapped model, which has made a step.
  template <class Model>
  struct Training {
    explicit Training(const ShardRank& rank) : model(rank.sizes_), ddp(model, rank.group_) { step(rank); }

    /// @param optimizer a ShardedOptimizer, or none
    void step(const ShardRank& rank, auto&... optimizer) {
      ddp.backward([&](const dtrain::Ready& ready) { rank.run_backward(model, ready); }, optimizer...);
    }

    Model model;
    dtrain::DistributedDataParallel<Model, P> ddp;
  };

  /// With all of the optimizer's state.
  template <class Model>
  struct Whole {
    explicit Whole(const ShardRank& rank)
        : training(rank), means(training.ddp.plan().arena_bytes / sizeof(float)), squares(means.size()) {}

    void step(const ShardRank& rank, int sample) {
      training.step(rank);
      std::size_t offset = 0;
      for (std::size_t i = 0; i < training.model.parameters().size(); ++i) {
        const std::span<float> weights = training.model.parameters()[i].value.template as<float>();
        rank.rule_(
            weights, training.model.gradient(i),
            {std::span(means).subspan(offset, weights.size()), std::span(squares).subspan(offset, weights.size())},
            {static_cast<std::uint64_t>(sample) + 1, i});
        offset += weights.size();
      }
    }

    Training<Model> training;
    std::vector<float> means;
    std::vector<float> squares;
  };

  struct Freeing {
    explicit Freeing(const ShardRank& rank)
        : training(rank), optimizer(training.ddp, rank.rule_, {.stage = 2, .early_update = true}) {}
    Training<OwningModel> training;
    dtrain::ShardedOptimizer<dtrain::optimizers::AdamW, typename P::ChannelBackend::Communicator> optimizer;
  };

  template <class Model, class Step>
  void step(const char* name, int sample, Training<Model>& training, Step run) {
    for (std::size_t i = 0; i < training.model.parameters().size(); ++i) {
      const auto value = static_cast<float>(group_.rank() + sample % 5) + static_cast<float>(i % 7);
      std::ranges::fill(training.model.gradient(i), value);
    }
    group_.barrier();
    const std::int64_t begin = now_nanoseconds();
    run();
    const std::int64_t end = now_nanoseconds();
    if (sample > 0) tell_interval(name, sample, {begin, end});
  }

  template <class Model>
  void run_backward(const Model& model, const dtrain::Ready& ready) const {
    if (!computes_) {
      model.announce(ready);
      return;
    }
    auto wake = std::chrono::steady_clock::now();
    for (std::size_t i = layers; i > 0; --i) {
      wake += layer_time;
      std::this_thread::sleep_until(wake);
      ready(i - 1);
    }
  }

  /// Both trainings have the same weights, to the last bits.
  template <class Model>
  static void check(ShapeModel& whole, Model& model) {
    for (std::size_t i = 0; i < whole.parameters().size(); ++i) {
      const auto a = whole.parameters()[i].value.template as<float>();
      const auto b = model.parameters()[i].value.template as<float>();
      if (!std::ranges::equal(a, b, [](float one, float other) { return std::abs(one - other) <= 1e-6F; })) {
        throw dtrain::Error(dtrain::Errc::protocol, "the weights of two trainings differ");
      }
    }
  }

  dtrain::ProcessGroup<P> group_;
  std::vector<std::int64_t> sizes_;
  bool computes_;
  dtrain::optimizers::AdamW rule_{};
};

}  // namespace bench
