#pragma once
/// @file
/// The gradient hook that --hook names.

#include <dtrain/dtrain.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <variant>

namespace shared {

/// Threads and lifetime: as the hooks'.
class ChosenHook {
 public:
  /// @param steps that the training has made before
  ChosenHook(const std::string& name, std::uint64_t steps) : name_(name) {
    if (name == "bf16") hook_.emplace<dtrain::hooks::Cast<dtrain::bfloat16>>();
    if (name == "f16") hook_.emplace<dtrain::hooks::Cast<dtrain::float16>>();
    if (name == "power-sgd") hook_.emplace<dtrain::hooks::PowerSgd>(dtrain::hooks::PowerSgdOptions{.rank = 4});
    if (name == "local-sgd")
      hook_.emplace<dtrain::hooks::LocalSgd>(dtrain::hooks::LocalSgdOptions{.every = 8, .start_after = 100})
          .set_steps(steps);
    if (name == "top-k")
      hook_.emplace<dtrain::hooks::TopK>(dtrain::hooks::TopKOptions{.fraction = 0.05, .start_after = 100});
  }

  std::string description() const { return "--hook=" + name_; }

  void prepare(std::span<const dtrain::Parameter> parameters) {
    if (auto* const hook = std::get_if<dtrain::hooks::PowerSgd>(&hook_)) hook->prepare(parameters);
    if (auto* const hook = std::get_if<dtrain::hooks::TopK>(&hook_)) hook->prepare(parameters);
    if (auto* const hook = std::get_if<dtrain::hooks::LocalSgd>(&hook_)) hook->prepare(parameters);
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

  /// After the optimizer's step. Collective, blocking. @param is_saved whether all ranks must have the same weights now
  template <class Group>
  void after_update(const Group& group, bool is_saved) {
    if (auto* const hook = std::get_if<dtrain::hooks::LocalSgd>(&hook_)) {
      const bool averaged = hook->average(group);
      if (is_saved && !averaged) hook->average_now(group);
    }
  }

 private:
  struct None {
    template <class C>
    void reduce(const dtrain::GradientBucket<C>& bucket) {
      bucket.channel.all_reduce(bucket.values, bucket.values, bucket.op, bucket.stream);
    }
  };

  std::string name_;
  std::variant<None, dtrain::hooks::Cast<dtrain::bfloat16>, dtrain::hooks::Cast<dtrain::float16>,
               dtrain::hooks::PowerSgd, dtrain::hooks::TopK, dtrain::hooks::LocalSgd>
      hook_;
};

}  // namespace shared
