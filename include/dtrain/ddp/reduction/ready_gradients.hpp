#pragma once
/// @file
/// ReadyGradients of a Reducer: which gradients are ready in a step, and in which order.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The number of the step in which each parameter was last ready, so that a new step resets nothing.
/// Threads: `mark_ready` concurrently, for any parameters; everything else between steps.
/// Lifetime: the names outlive it.
class ReadyGradients {
 public:
  explicit ReadyGradients(const ParameterNames& names)
      : names_(&names), ready_in_step_(names.size()), position_(names.size()) {}

  void begin_step() noexcept {
    step_.fetch_add(1, std::memory_order_relaxed);
    open_.store(true, std::memory_order_release);
  }

  /// Ends the step: mark_ready throws from now on. @returns whether a step was open.
  bool end_step() noexcept { return open_.exchange(false, std::memory_order_acq_rel); }

  bool is_open() const noexcept { return open_.load(std::memory_order_acquire); }

  /// Requires an index in range. @throws Error (invalid_argument) outside a step, or for a second call in the step.
  void mark_ready(std::size_t parameter) {
    if (!is_open()) {
      names_->refuse_ready(parameter, "came when no step was under way; call it between begin() and finish()");
    }
    const std::uint64_t step = step_.load(std::memory_order_relaxed);
    if (ready_in_step_[parameter].exchange(step, std::memory_order_relaxed) == step) {
      refuse_twice(parameter, step);
    }
    if (records_order_) {
      position_[parameter].store(1 + next_position_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
    }
  }

  /// Starts or stops recording the ready order. Between steps.
  void record_order(bool wanted);

  /// All parameters in their ready order. Parameters that were not ready follow, in reverse index order.
  std::vector<std::size_t> observed_order() const;

  bool was_ready(std::size_t parameter) const noexcept {
    return ready_in_step_[parameter].load(std::memory_order_relaxed) == step_.load(std::memory_order_relaxed);
  }

  /// A sentence that names up to five parameters that were not ready in this step; empty if all were.
  std::string missing() const;

  /// Sets step, ready, parameters and missing. Threads: any, also during a step.
  void describe(rendezvous::RankStatus& status) const;

  /// The number of the last step begun, from 1.
  std::uint64_t step() const noexcept { return step_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t most_named = 5;

  [[noreturn]] void refuse_twice(std::size_t parameter, std::uint64_t step) const;

  const ParameterNames* names_;
  std::vector<std::atomic<std::uint64_t>> ready_in_step_;
  std::vector<std::atomic<std::size_t>> position_;  ///< position in the observed order, from 1
  std::atomic<std::size_t> next_position_{0};
  bool records_order_ = false;  ///< changed between steps
  std::atomic<std::uint64_t> step_{0};
  std::atomic<bool> open_{false};
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>

#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED void ReadyGradients::record_order(bool wanted) {
  records_order_ = wanted;
  next_position_.store(0, std::memory_order_relaxed);
  for (std::atomic<std::size_t>& position : position_) {
    position.store(0, std::memory_order_relaxed);
  }
}

DTRAIN_DEFINED std::vector<std::size_t> ReadyGradients::observed_order() const {
  std::vector<std::size_t> order;
  for (std::size_t parameter = position_.size(); parameter-- > 0;) {
    order.push_back(parameter);
  }
  const auto rank = [this](std::size_t parameter) {
    return position_[parameter].load(std::memory_order_relaxed) - 1;  // 0 becomes the largest
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
  return order;
}

DTRAIN_DEFINED std::string ReadyGradients::missing() const {
  const std::uint64_t step = step_.load(std::memory_order_relaxed);
  std::string listed;
  std::size_t count = 0;
  for (std::size_t parameter = 0; parameter < ready_in_step_.size(); ++parameter) {
    if (was_ready(parameter)) continue;
    if (++count <= most_named) {
      listed += (count > 1 ? ", " : "") + names_->describe(parameter);
    }
  }
  if (count == 0) {
    return {};
  }
  const std::string more = count > most_named ? format_text(" and {} more", {count - most_named}) : "";
  return format_text(
      "in step {} these parameters got no gradient: {}{}; the backward pass must call ready(i) for every parameter, "
      "with zeros where one took no part (or set DdpOptions::allow_unused_parameters)",
      {step, listed, more});
}

DTRAIN_DEFINED void ReadyGradients::describe(rendezvous::RankStatus& status) const {
  status.step = step();
  if (!is_open()) return;  // a pass under no_sync(), which no gradient is counted in
  const std::size_t parameters = ready_in_step_.size();
  std::size_t missing = parameters;  // the last one: backward passes go from the last to the first
  for (std::size_t parameter = 0; parameter < parameters; ++parameter) {
    if (was_ready(parameter)) {
      ++status.ready;
    } else {
      missing = parameter;
    }
  }
  status.parameters = static_cast<std::uint32_t>(parameters);
  if (missing != parameters) status.missing = names_->describe(missing);
}

DTRAIN_DEFINED DTRAIN_NOT_INLINED void ReadyGradients::refuse_twice(std::size_t parameter, std::uint64_t step) const {
  names_->refuse_ready(parameter,
                       format_text("came twice in step {}; call it once, when the gradient is final", {step}));
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
