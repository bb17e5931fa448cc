#pragma once
/// @file
/// Residuals: what a gradient hook has not yet sent, kept beyond a step. HookRanks: the number of ranks that its state
/// belongs to.

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Residuals of each parameter, which do not depend on the buckets. Threads: one at a time.
class Residuals {
 public:
  bool is_empty() const noexcept { return errors_.empty(); }

  /// Sets residuals of zero for each parameter. @param elements of each parameter's gradient; 0: no residual is kept
  void allocate(std::span<const std::size_t> elements);

  /// Residual of a parameter, empty if none is kept. Lifetime: this object's.
  std::span<float> of(std::size_t parameter) noexcept {
    return is_empty() ? std::span<float>() : std::span<float>(errors_[parameter]);
  }

  /// Averages the residuals over the ranks, so that no residual is lost. Collective, blocking.
  /// @throws the job's first cause
  template <class Group>
  void average(const Group& group) {
    for (std::vector<float>& error : errors_) {
      if (!error.empty()) group.all_reduce_without_cast(std::span(error), ReduceOp::average);
    }
  }

  /// Adds the residuals to a checkpoint's tensors, as "HOOK/PARAMETER/error". Lifetime: the views refer to this object.
  void add_to(std::vector<NamedTensor>& tensors, std::string_view hook);

 private:
  std::vector<std::vector<float>> errors_;
};

/// Compares the number of ranks in a hook's steps and in its state(). A hook knows its wrapper's group from the first
/// step on; state() may be called before the first step. Threads: one at a time.
class HookRanks {
 public:
  /// Called in each reduce(). @param ranks of the wrapper's group @throws Error (invalid_argument) if state() had
  /// another number
  void step_is_for(const char* hook, int ranks) {
    if (of_state_ != 0 && of_state_ != ranks) refuse_state(hook, of_state_, ranks);
    of_steps_ = ranks;
  }

  /// Called in state(). @param ranks of its group @throws Error (invalid_argument) if the steps had another number
  void state_is_for(const char* hook, int ranks) {
    if (of_steps_ != 0 && of_steps_ != ranks) refuse_state(hook, ranks, of_steps_);
    of_state_ = ranks;
  }

 private:
  [[noreturn]] static void refuse_state(const char* hook, int of_state, int of_steps);

  int of_steps_ = 0;  ///< 0: not known yet, as for of_state_
  int of_state_ = 0;
};

/// @throws Error (invalid_argument): `hook`, which keeps state of one model, is given to a second one
[[noreturn]] void refuse_second_model(const char* hook);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void Residuals::allocate(std::span<const std::size_t> elements) {
  errors_.clear();
  for (const std::size_t count : elements) {
    errors_.emplace_back(count);
  }
}

DTRAIN_DEFINED void Residuals::add_to(std::vector<NamedTensor>& tensors, std::string_view hook) {
  for (std::size_t i = 0; i < errors_.size(); ++i) {
    if (!errors_[i].empty()) tensors.push_back({format_text("{}/{}/error", {hook, i}), tensor_view(errors_[i])});
  }
}

DTRAIN_DEFINED void HookRanks::refuse_state(const char* hook, int of_state, int of_steps) {
  throw_error(Errc::invalid_argument,
              "{}: state() was given a group of world size {}, but the model is wrapped in one of world size {}; give "
              "state() the wrapper's group",
              {hook, of_state, of_steps});
}

DTRAIN_DEFINED void refuse_second_model(const char* hook) {
  throw_error(Errc::invalid_argument,
              "a {} is given to a second model; each model needs its own (in an elastic job: make the hook in the "
              "function of train())",
              {hook});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
