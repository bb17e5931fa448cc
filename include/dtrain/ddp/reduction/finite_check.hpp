#pragma once
/// @file
/// FiniteCheck of a BucketReduction: finds the first NaN or infinity among the gradients that this rank contributes.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/ddp/address_check.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/precision/loss_scaler.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Reads each bucket before its collective, where the sum with the other ranks' gradients does not hide yet whose the
/// NaN is. Looks at the first 20 steps, and then at each k-th: k is the least power of two for which the readings take
/// less than 0.3% of a step, at most 64, by the median of steps 11 to 20. After a finding it looks at the next 100
/// steps, and with OnNotFinite::fail at every step. For gradients in host memory. Steady state: allocates nothing.
/// Threads: work of buckets one at a time; everything else between steps. Lifetime: the table outlives it; lists of
/// parameters outlive the step. A stream needs room for one work item more in each bucket.
class FiniteCheck {
 public:
  using Clock = std::chrono::steady_clock;

  FiniteCheck(const GradientTable& gradients, OnNotFinite action) noexcept : gradients_(&gradients), action_(action) {}

  /// Whether this step is looked at.
  bool is_on() const noexcept { return is_on_; }

  /// @param is_for_model whether the step leaves the weights to the program
  void begin_step(std::uint64_t step, bool is_for_model) noexcept {
    all_look_ = step <= last_timed || step % most_steps_between == 0 || step <= all_look_until_;
    is_on_ = action_ != OnNotFinite::ignore && (all_look_ || step % every_ == 0 || step <= looks_until_);
    is_for_model_ = is_for_model;
    step_ = step;
    parameters_ = 0;
    if (step >= first_timed && step <= last_timed + 1) time_step(step);
  }

  /// Before a bucket's collective is enqueued. @param at_once does not wait for the stream
  template <class Stream>
  void before_collective(const std::vector<std::size_t>& parameters, const BufferView& bucket,
                         [[maybe_unused]] Stream stream, bool at_once) {
    if constexpr (RunsHostWork<Stream>) {
      if (!at_once) return stream.enqueue([this, &parameters, bucket]() noexcept { look(parameters, bucket); });
    }
    look(parameters, bucket);
  }

  /// When the step's work has run. @param scaler of the step, which has updated its scale; may be null
  /// @param is_sum_finite false: the norm of the reduced gradients is not finite
  void end_step(const LossScaler* scaler, bool is_sum_finite) noexcept;

  /// Whether the last step has a finding that is to be told: not one soon after another, or of a search for a scale.
  bool has_finding() const noexcept { return has_finding_; }

  /// "the gradient of parameter 3 'fc1.weight' has nan at [3, 17] in step 812, the first of 9 such parameters; the
  /// weights were finite", or "the sum of the ranks' gradients of ...", if each rank's own are finite.
  /// @pre has_finding() @param weights visits the present parameters @param is_sum set to which it is
  std::string describe(const AddressCheck& weights, bool& is_sum) const;

 private:
  static constexpr std::uint64_t first_timed = 11;
  static constexpr std::uint64_t last_timed = 20;
  static constexpr std::uint64_t steps_after_finding = 100;
  static constexpr std::uint64_t most_steps_between = 64;

  /// An element of a parameter.
  struct BadElement {
    std::size_t parameter;
    std::size_t element;
    bool is_nan;
  };

  void time_step(std::uint64_t step) noexcept;
  void look(const std::vector<std::size_t>& parameters, const BufferView& bucket) noexcept;
  bool find(std::size_t parameter, const std::byte* content, BadElement& place) const noexcept;
  std::string place_text(const char* whose, const BadElement& place) const;

  const GradientTable* gradients_;
  OnNotFinite action_;
  bool is_on_ = false;
  bool is_for_model_ = true;
  std::uint64_t step_ = 0;
  std::uint64_t every_ = 1;
  bool all_look_ = false;             ///< whether every rank looks at this step
  std::uint64_t all_look_until_ = 0;  ///< the last step after a sum that was not finite
  std::uint64_t looks_until_ = 0;     ///< the last step after a finding that is looked at
  std::uint64_t quiet_until_ = 0;     ///< the last step after a finding that is not told
  int scaled_steps_ = 0;              ///< steps in a row that were not finite, with a loss scaler
  bool has_finding_ = false;
  std::size_t parameters_ = 0;  ///< parameters with such an element in this step
  BadElement first_{};          ///< the one with the lowest index
  std::chrono::nanoseconds looked_{};
  Clock::time_point timed_since_{};
  std::array<Clock::duration, last_timed - first_timed + 1> step_times_{};
};

/// @throws Error (unsupported): gradients in device memory are not looked at
[[noreturn]] void refuse_fail_on_device();

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/kernels/not_finite.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_NOT_INLINED DTRAIN_DEFINED void refuse_fail_on_device() {
  throw_error(Errc::unsupported,
              "DdpOptions::on_not_finite = OnNotFinite::fail reads gradients in host memory, and the model's are on a "
              "GPU; leave it, and test StepOptions::measure_norm's result");
}

DTRAIN_DEFINED void FiniteCheck::time_step(std::uint64_t step) noexcept {
  constexpr double most_share = 0.003;
  const auto now = Clock::now();
  const auto before = std::exchange(timed_since_, now);
  if (step == first_timed) {
    looked_ = {};
    return;
  }
  step_times_[step - first_timed - 1] = now - before;
  if (step <= last_timed || action_ != OnNotFinite::log) return;
  const auto middle = step_times_.begin() + step_times_.size() / 2;
  std::nth_element(step_times_.begin(), middle, step_times_.end());
  const double steps =
      static_cast<double>(step_times_.size()) * static_cast<double>(std::max<Clock::rep>(1, middle->count()));
  const double wanted = static_cast<double>(looked_.count()) / steps / most_share;
  while (every_ < most_steps_between && static_cast<double>(every_) < wanted)
    every_ *= 2;
}

DTRAIN_DEFINED void FiniteCheck::look(const std::vector<std::size_t>& parameters, const BufferView& bucket) noexcept {
  const bool is_timed = step_ >= first_timed && step_ <= last_timed;
  const auto began = is_timed ? Clock::now() : Clock::time_point{};
  const bool is_finite = kernels::first_not_finite(bucket.dtype, bucket.data, bucket.count) == bucket.count;
  if (is_timed) looked_ += Clock::now() - began;
  if (is_finite) return;
  for (const std::size_t parameter : parameters) {
    BadElement place{};
    if (!find(parameter, (*gradients_)[parameter].place, place)) continue;
    if (parameters_++ == 0 || parameter < first_.parameter) first_ = place;
  }
}

DTRAIN_DEFINED bool FiniteCheck::find(std::size_t parameter, const std::byte* content,
                                      BadElement& place) const noexcept {
  const BufferView all = gradients_->view(parameter).flat();
  const std::size_t element = content == nullptr ? all.count : kernels::first_not_finite(all.dtype, content, all.count);
  if (element == all.count) return false;
  place = {parameter, element, kernels::is_nan(all.dtype, content + element * size_bytes(all.dtype))};
  return true;
}

DTRAIN_DEFINED void FiniteCheck::end_step(const LossScaler* scaler, bool is_sum_finite) noexcept {
  constexpr int longest_search = 8;
  has_finding_ = false;
  if (action_ == OnNotFinite::ignore) return;
  if (parameters_ == 0 && is_sum_finite) {
    if (is_on_ || scaler != nullptr) scaled_steps_ = 0;
    return;
  }
  const bool is_search = scaler != nullptr && scaler->scale() > 1 && ++scaled_steps_ < longest_search;
  if (is_search && action_ == OnNotFinite::log) return;
  looks_until_ = step_ + steps_after_finding;
  if (!is_sum_finite) all_look_until_ = looks_until_;
  if (parameters_ == 0 && !(all_look_ && is_for_model_)) return;
  has_finding_ = step_ > quiet_until_ || action_ == OnNotFinite::fail;
  quiet_until_ = looks_until_;
}

DTRAIN_DEFINED std::string FiniteCheck::place_text(const char* whose, const BadElement& place) const {
  const std::span<const std::int64_t> extents = gradients_->view(place.parameter).shape.extents();
  std::string position;
  std::size_t rest = place.element;
  for (std::size_t axis = extents.size(); axis-- > 0;) {
    const auto extent = static_cast<std::size_t>(extents[axis]);
    position = format_text("{}{}{}", {rest % extent, position.empty() ? "" : ", ", position});
    rest /= extent;
  }
  return format_text("{} of {} has {} at [{}] in step {}",
                     {whose, truncate_utf8(gradients_->names().describe(place.parameter), 200),
                      place.is_nan ? "nan" : "inf", position, step_});
}

DTRAIN_DEFINED std::string FiniteCheck::describe(const AddressCheck& weights, bool& is_sum) const {
  is_sum = parameters_ == 0;
  if (is_sum) {
    BadElement place{};
    std::size_t parameter = 0;
    while (parameter < gradients_->size() && !find(parameter, (*gradients_)[parameter].own, place))
      ++parameter;
    if (parameter == gradients_->size())
      return format_text("the norm of the gradients is not finite in step {}", {step_});
    const bool is_narrow = size_bytes(gradients_->view(parameter).dtype) == 2;
    return format_text("{}, and no rank has found one among its own{}",
                       {place_text("the sum of the ranks' gradients", place),
                        is_narrow && !place.is_nan ? "; a lower loss scale or Accumulate::f32 helps" : ""});
  }
  std::string text = place_text("the gradient", first_);
  if (parameters_ > 1) append_text(text, ", the first of {} such parameters", {parameters_});
  if (is_for_model_) {
    std::string weight;
    weights.visit([&](const Parameter& each) {
      const BufferView value = each.value.flat();
      const bool is_read = weight.empty() && value.device.kind == DeviceKind::host && value.data != nullptr;
      if (is_read && kernels::first_not_finite(value.dtype, value.data, value.count) != value.count) weight = each.name;
    });
    text += weight.empty() ? "; the weights were finite" : format_text("; nor was the weight '{}' finite", {weight});
  } else {
    text += "; the weights were not read";
  }
  if (every_ > 1 && step_ > last_timed) append_text(text, " (one of {} steps is looked at)", {every_});
  return text;
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
