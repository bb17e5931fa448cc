#pragma once
/// @file
/// A rank that takes steps with AdamW whole on every rank, with ShardedOptimizer, and with its second stage, in turns;
/// where the backward pass computes, also with that and ready_frees_value.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
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
  ShardRank(dtrain::ProcessGroup<P> group, const std::vector<std::int64_t>& sizes, bool computes)
      : group_(std::move(group)),
        sizes_(sizes),
        computes_(computes),
        whole_model_(sizes),
        sharded_model_(sizes),
        divided_model_(sizes),
        whole_(whole_model_, group_),
        sharded_(sharded_model_, group_),
        divided_(divided_model_, group_),
        means_(whole_model_.elements()),
        squares_(whole_model_.elements()) {}

  /// The first sample of each is a warm-up.
  void measure(int samples) {
    sharded_.backward([this](const dtrain::Ready& ready) { run_backward(sharded_model_, ready); });
    whole_.backward([this](const dtrain::Ready& ready) { run_backward(whole_model_, ready); });
    divided_.backward([this](const dtrain::Ready& ready) { run_backward(divided_model_, ready); });
    dtrain::ShardedOptimizer sharded{sharded_, rule_};
    dtrain::ShardedOptimizer divided{divided_, rule_, dtrain::zero::Gradients{}};
    std::optional<Freeing> freeing;
    if (computes_) freeing.emplace(group_, sizes_, rule_);
    const int turns = computes_ ? 4 : 3;
    for (int sample = 0; sample <= samples; ++sample) {
      for (int turn = 0; turn < turns; ++turn) {
        switch ((sample + turn) % turns) {
          case 0:
            measure_step("whole", sample, whole_model_, [&] {
              whole_.backward([this](const dtrain::Ready& ready) { run_backward(whole_model_, ready); });
              update_whole(static_cast<std::uint64_t>(sample) + 1);
            });
            break;
          case 1:
            measure_step("sharded", sample, sharded_model_, [&] {
              sharded_.backward([this](const dtrain::Ready& ready) { run_backward(sharded_model_, ready); }, sharded);
            });
            break;
          case 2:
            measure_step("divided", sample, divided_model_, [&] {
              divided_.backward([this](const dtrain::Ready& ready) { run_backward(divided_model_, ready); }, divided);
            });
            break;
          default:
            measure_step("freeing", sample, freeing->model, [&] {
              freeing->ddp.backward([&](const dtrain::Ready& ready) { run_backward(freeing->model, ready); },
                                    freeing->optimizer);
            });
        }
      }
      check(sharded_model_);
      check(divided_model_);
      if (freeing) check(freeing->model);
    }
    tell_fact("state", static_cast<double>(sharded.state_bytes()));
    tell_fact("gradients", static_cast<double>(divided.gradient_bytes()));
    tell_fact("arena", static_cast<double>(divided_.plan().arena_bytes));
  }

 private:
  /// Its buckets are those of the others, because gradients become ready in the reverse order of the parameters.
  struct Freeing {
    Freeing(const dtrain::ProcessGroup<P>& group, const std::vector<std::int64_t>& sizes,
            const dtrain::optimizers::AdamW& rule)
        : model(sizes), ddp(model, group), optimizer(ddp, rule, dtrain::zero::Gradients{.ready_frees_value = true}) {}
    OwningModel model;
    dtrain::DistributedDataParallel<OwningModel, P> ddp;
    dtrain::ShardedOptimizer<dtrain::optimizers::AdamW, typename P::ChannelBackend::Communicator,
                             dtrain::zero::Gradients>
        optimizer;
  };

  template <class Model, class Step>
  void measure_step(const char* name, int sample, Model& model, Step step) {
    fill(model, sample);
    group_.barrier();
    const std::int64_t begin = now_nanoseconds();
    step();
    const std::int64_t end = now_nanoseconds();
    if (sample > 0) {
      tell_interval(name, sample, {begin, end});
    }
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

  void update_whole(std::uint64_t step) {
    std::size_t offset = 0;
    for (std::size_t i = 0; i < whole_model_.parameters().size(); ++i) {
      const std::span<float> weights = whole_model_.parameters()[i].value.template as<float>();
      rule_(weights, whole_model_.gradient(i),
            {std::span(means_).subspan(offset, weights.size()), std::span(squares_).subspan(offset, weights.size())},
            {step, i});
      offset += weights.size();
    }
  }

  template <class Model>
  void fill(Model& model, int sample) {
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      const auto value = static_cast<float>(group_.rank() + sample % 5) + static_cast<float>(i % 7);
      std::ranges::fill(model.gradient(i), value);
    }
  }

  /// Both trainings have the same weights, to the last bits.
  template <class Model>
  void check(Model& model) {
    for (std::size_t i = 0; i < whole_model_.parameters().size(); ++i) {
      const auto a = whole_model_.parameters()[i].value.template as<float>();
      const auto b = model.parameters()[i].value.template as<float>();
      if (!std::ranges::equal(a, b, [](float one, float other) { return std::abs(one - other) <= 1e-6F; })) {
        throw dtrain::Error(dtrain::Errc::protocol, "the sharded optimizer's weights are wrong");
      }
    }
  }

  dtrain::ProcessGroup<P> group_;
  std::vector<std::int64_t> sizes_;
  bool computes_;
  dtrain::optimizers::AdamW rule_{};
  ShapeModel whole_model_;
  ShapeModel sharded_model_;
  OwningModel divided_model_;
  dtrain::DistributedDataParallel<ShapeModel, P> whole_;
  dtrain::DistributedDataParallel<ShapeModel, P> sharded_;
  dtrain::DistributedDataParallel<OwningModel, P> divided_;
  std::vector<float> means_;  ///< of the whole optimizer
  std::vector<float> squares_;
};

}  // namespace bench
