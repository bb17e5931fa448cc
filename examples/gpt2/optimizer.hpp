#pragma once
/// @file
/// AdamW, with its state and the gradients whole on every rank or divided among them.

#include <dtrain/dtrain.hpp>

#include <concepts>
#include <cstddef>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "whole_optimizer.hpp"

namespace gpt2 {

/// Bytes on one rank.
struct StateBytes {
  std::size_t optimizer = 0;  ///< with f32 weights of a bf16 model
  std::size_t gradients = 0;
};

/// AdamW with everything whole, or a stage of ZeRO, chosen when the program runs. Lifetime: `ddp` and `model` outlive
/// it.
template <class Ddp, class Model>
class Optimizer {
 public:
  /// Collective with a stage. @param stage of ZeRO; 0: none
  /// @param clip the most that the gradients' norm may be; 0: whatever it is
  Optimizer(Ddp& ddp, Model& model, int stage, double clip)
      : ddp_(&ddp), model_(&model), stage_(stage), clip_(clip), chosen_(chosen(ddp, model, stage)) {}

  /// A step of the training: `backward(ready)`, reduction and update. Collective, blocking.
  template <std::invocable<dtrain::Ready> F>
  void step(F&& backward, float rate) {
    std::visit(
        [&](auto& optimizer) {
          optimizer.rule().adamw.rate = rate;
          reduce(backward, optimizer);
          if constexpr (is_whole<decltype(optimizer)>) optimizer.update(*model_);
        },
        chosen_);
  }

  /// A step over micro-batches, `pass(batch, ready)`, with everything whole. @returns the mean loss. Collective,
  /// blocking.
  template <class F>
  double step_over(const dtrain::SampleStep& samples, F&& pass, float rate) {
    WholeOptimizer& optimizer = std::get<WholeOptimizer>(chosen_);
    optimizer.rule().adamw.rate = rate;
    const double loss = ddp_->backward(samples, pass, {.clip_norm = clip_});
    optimizer.update(*model_);
    return loss;
  }

  /// The same without the update, to be timed. Collective, blocking.
  template <std::invocable<dtrain::Ready> F>
  void step_without_update(F&& backward) {
    std::visit(
        [&](auto& optimizer) {
          optimizer.rule().updates = false;
          reduce(backward, optimizer);
          optimizer.rule().updates = true;
        },
        chosen_);
  }

  /// And without communication. In stage 2, where no rank has memory that gradients could add up in, they are computed.
  template <std::invocable<dtrain::Ready> F>
  void step_without_communication(F&& backward) {
    if (stage_ == 2) {
      struct Nobody final : dtrain::Ready::Sink {
        void ready(const dtrain::ReadyGradient&) override {}
      } nobody;
      return backward(dtrain::Ready(nobody));
    }
    const auto held = ddp_->no_sync();
    ddp_->backward(backward);
  }

  /// Writes the weights, the state and `others` to the file. Collective, blocking.
  void save(const std::string& path, const std::vector<dtrain::NamedTensor>& others) {
    std::visit(
        [&](auto& optimizer) {
          const std::vector<dtrain::NamedTensor> all = saved(optimizer, others);
          if constexpr (is_whole<decltype(optimizer)>) {
            dtrain::save_checkpoint(ddp_->group(), path, all);
          } else {
            dtrain::save_checkpoint(ddp_->group(), path, all, optimizer);
          }
        },
        chosen_);
  }

  /// Reads them. Collective, blocking. @returns false if there is no such file
  bool load(const std::string& path, const std::vector<dtrain::NamedTensor>& others) {
    return std::visit(
        [&](auto& optimizer) {
          const std::vector<dtrain::NamedTensor> all = saved(optimizer, others);
          if constexpr (is_whole<decltype(optimizer)>) {
            const bool found = dtrain::load_checkpoint(ddp_->group(), path, all);
            if (found) optimizer.take_saved();
            return found;
          } else {
            return dtrain::load_checkpoint(ddp_->group(), path, all, optimizer);
          }
        },
        chosen_);
  }

  /// Of ranks that have updated weights of their own, the state becomes the average. Collective, blocking.
  void average_state() {
    if (auto* const whole = std::get_if<WholeOptimizer>(&chosen_)) whole->average_state(ddp_->group());
  }

  StateBytes state() const noexcept {
    return std::visit(
        [this](const auto& optimizer) -> StateBytes {
          const std::size_t arena = is_whole<decltype(optimizer)> ? ddp_->plan().arena_bytes : 0;
          return {optimizer.state_bytes(), arena + optimizer.gradient_bytes()};
        },
        chosen_);
  }

 private:
  using ShardedOptimizer = typename Ddp::template Sharded<Rule>;
  using Chosen = std::variant<WholeOptimizer, ShardedOptimizer>;
  template <class T>
  static constexpr bool is_whole = std::is_same_v<std::remove_cvref_t<T>, WholeOptimizer>;

  static Chosen chosen(Ddp& ddp, Model& model, int stage) {
    if (stage == 0) return WholeOptimizer(model);
    return ShardedOptimizer(ddp, Rule{}, {.stage = stage});
  }

  template <class F>
  void reduce(F& backward, WholeOptimizer& optimizer) {
    ddp_->backward(backward, {.clip_norm = clip_, .master = optimizer.master()});
  }

  template <class F>
  void reduce(F& backward, ShardedOptimizer& optimizer) {
    ddp_->backward(backward, optimizer, {.clip_norm = clip_});
  }

  template <class Chosen>
  std::vector<dtrain::NamedTensor> saved(Chosen& optimizer, const std::vector<dtrain::NamedTensor>& others) {
    std::vector<dtrain::NamedTensor> all;
    if constexpr (is_whole<Chosen>) {
      all = optimizer.saved(*model_);
    } else {
      all = dtrain::parameter_values(ddp_->parameters());
    }
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }

  Ddp* ddp_;
  Model* model_;
  int stage_;
  double clip_;
  Chosen chosen_;
};

}  // namespace gpt2
