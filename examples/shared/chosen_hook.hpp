#pragma once
/// @file
/// The gradient hook that --hook names.

#include <dtrain/dtrain.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "hook_choice.hpp"

namespace shared {

/// Steps of plain all-reduces before the first one of topk and local: both lose accuracy without them.
inline constexpr std::uint64_t plain_steps = 100;

/// Threads and lifetime: as the hooks'.
class ChosenHook {
 public:
  explicit ChosenHook(HookChoice choice) : choice_(std::move(choice)) {
    using namespace dtrain::hooks;
    const std::string& name = choice_.name;
    const double argument = choice_.argument;
    if (name == "bf16") hook_.emplace<Cast<dtrain::bfloat16>>();
    if (name == "f16") hook_.emplace<Cast<dtrain::float16>>();
    if (name == "bf16:error-feedback") {
      hook_.emplace<Cast<dtrain::bfloat16>>(CastOptions{.error_feedback = every_parameter});
    }
    if (name == "powersgd") hook_.emplace<PowerSgd>(PowerSgdOptions{.rank = static_cast<int>(argument)});
    if (name == "topk") hook_.emplace<TopK>(TopKOptions{.fraction = argument / 100, .start_after = plain_steps});
    if (name == "local") {
      hook_.emplace<LocalSgd>(
          LocalSgdOptions{.every = static_cast<std::uint64_t>(argument), .start_after = plain_steps});
    }
  }

  std::string description() const { return "--hook=" + choice_.text; }

  void prepare(std::span<const dtrain::Parameter> parameters) {
    for (const dtrain::Parameter& parameter : parameters) {
      weight_bytes_ += parameter.value.bytes();
    }
    const auto prepare_one = [parameters](auto& hook) {
      if constexpr (requires { hook.prepare(parameters); }) hook.prepare(parameters);
    };
    std::visit(prepare_one, hook_);
  }

  std::uint64_t items_per_bucket(int ranks) const {
    const auto items_of_one = [ranks](const auto& hook) -> std::uint64_t {
      if constexpr (requires { hook.items_per_bucket(ranks); }) return hook.items_per_bucket(ranks);
      return dtrain::ddp::default_hook_items;
    };
    return std::visit(items_of_one, hook_);
  }

  /// The library's hooks run on the host; on a GPU --hook is none.
  template <class C>
  void reduce(const dtrain::GradientBucket<C>& bucket) {
    if constexpr (dtrain::ddp::RunsHostWork<typename C::Stream>) {
      std::visit([&](auto& hook) { hook.reduce(bucket); }, hook_);
    } else {
      None().reduce(bucket);
    }
  }
  template <class C>
  void connect(const dtrain::GradientBucket<C>& zeros) {
    None().reduce(zeros);
  }

  /// Whether ranks have weights of their own, and averages of them now and then.
  bool averages_weights() const noexcept { return std::holds_alternative<dtrain::hooks::LocalSgd>(hook_); }

  /// After the optimizer's step. Collective, blocking. @param is_saved whether all ranks must have the same weights now
  template <class Group>
  void after_update(const Group& group, bool is_saved) {
    if (auto* const hook = std::get_if<dtrain::hooks::LocalSgd>(&hook_)) {
      const bool averaged = hook->average(group);
      if (is_saved && !averaged) hook->average_now(group);
      if (is_saved || averaged) averaged_bytes_ += weight_bytes_;
    }
  }

  /// Bytes of weights that were averaged, which no gradient hook's statistics have.
  std::uint64_t averaged_bytes() const noexcept { return averaged_bytes_; }

  /// The training has made so many steps before.
  void set_steps(std::int64_t steps) {
    if (auto* const hook = std::get_if<dtrain::hooks::LocalSgd>(&hook_)) {
      hook->set_steps(static_cast<std::uint64_t>(steps));
    }
  }

  /// What a checkpoint needs besides the weights and the number of steps: errors that gradients still get. Collective,
  /// blocking, once the model is wrapped: they become their average.
  template <class Group>
  std::vector<dtrain::NamedTensor> state(const Group& group) {
    return std::visit(
        [&group](auto& hook) -> std::vector<dtrain::NamedTensor> {
          if constexpr (requires { hook.state(group); } &&
                        !std::is_same_v<std::remove_cvref_t<decltype(hook)>, dtrain::hooks::LocalSgd>) {
            return hook.state(group);
          } else {
            return {};
          }
        },
        hook_);
  }

 private:
  struct None {
    template <class C>
    void reduce(const dtrain::GradientBucket<C>& bucket) {
      bucket.channel.enqueue(dtrain::backend::AllReduce{bucket.values, bucket.values, bucket.op}, bucket.stream);
    }
  };

  HookChoice choice_;
  std::variant<None, dtrain::hooks::Cast<dtrain::bfloat16>, dtrain::hooks::Cast<dtrain::float16>,
               dtrain::hooks::PowerSgd, dtrain::hooks::TopK, dtrain::hooks::LocalSgd>
      hook_;
  std::uint64_t weight_bytes_ = 0;
  std::uint64_t averaged_bytes_ = 0;
};

}  // namespace shared
