#pragma once
/// @file
/// AddressCheck of a Reducer: finds, in each step, parameters whose memory has moved since the wrapping.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/ddp/model.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The reducer reads and writes gradients at addresses that it read once. Memory that the model has moved since is free
/// or in other use. AddressCheck therefore reads parameters() again, at the beginning and at the end of a step. Steady
/// state: allocates nothing itself. Threads: the one that drives the steps.
class AddressCheck {
 public:
  /// Calls `visit` with each of the model's present parameters, in order.
  using Visit = std::function<void(const Parameter&)>;
  using Read = std::function<void(const Visit& visit)>;
  using Now = std::chrono::steady_clock::time_point (*)();

  /// Reads the parameters of `model`. Lifetime: the model outlives the check, or its forget().
  template <Model M>
  static Read reading(M& model) {
    return [&model](const Visit& visit) {
      for (const Parameter& parameter : model.parameters()) {
        visit(parameter);
      }
    };
  }

  /// @param read empty: nothing is checked
  /// @param every_step true: checks every step; false: steps 1, 2 and every 64th; nullopt: every step with up to 1000
  /// parameters, or once a step's two readings, by the fastest reading so far, take less than 1 us a parameter; else as
  /// false
  /// @param now the clock; tests have their own
  AddressCheck(Read read, std::optional<bool> every_step, Now now = &std::chrono::steady_clock::now)
      : read_(std::move(read)), every_step_(every_step), now_(now) {}

  /// Records the present addresses; later checks compare with them.
  void remember();

  /// Before the first gradient of step `step`, from 1, is read. @throws Error (invalid_argument)
  void begin_step(std::uint64_t step) {
    step_ = step;
    is_due_ = read_ && (step <= 2 || step % max_steps_between == 0 || every_step_.value_or(is_cheap()));
    if (is_due_) compare();
  }

  /// Between steps, before step `step`, whichever steps are checked. @throws Error (invalid_argument)
  void check(std::uint64_t step) {
    step_ = step;
    if (read_) compare();
  }

  /// Before the first reduced gradient is written. @throws Error (invalid_argument)
  void end_step() {
    if (is_due_) compare();
  }

  /// Visits the present parameters; none after forget().
  void visit(const Visit& visit) const {
    if (read_) read_(visit);
  }

  /// Disables the check, because the model may be destroyed.
  void forget() noexcept {
    read_ = nullptr;
    is_due_ = false;
  }

 private:
  static constexpr std::uint64_t max_steps_between = 64;
  static constexpr std::size_t always_checked_parameters = 1000;

  struct KnownMemory {
    BufferView value;
    BufferView gradient;
  };

  /// The fastest of all readings counts: on a loaded machine any single one can take long.
  bool is_cheap() const noexcept;

  void compare();

  /// Empty if the last step, or the beginning of this one, was checked.
  std::string since_last_check() const;

  void require_same(const char* what, std::size_t i, const Parameter& parameter, const BufferView& before,
                    const BufferView& now) const {
    const bool is_same_kind = before.bytes() == now.bytes() && before.dtype == now.dtype;
    if (!is_same_kind || (before.data != now.data && before.count != 0)) refuse_change(what, i, parameter, before, now);
  }
  [[noreturn]] void refuse_change(const char* what, std::size_t i, const Parameter& parameter, const BufferView& before,
                                  const BufferView& now) const;
  [[noreturn]] void refuse_other_model(const std::string& which, const std::string& now,
                                       const std::string& before) const;

  Read read_;
  std::optional<bool> every_step_;
  Now now_;
  std::vector<KnownMemory> known_;
  std::uint64_t step_ = 0;
  std::uint64_t last_checked_ = 0;  ///< the last step in which a check found nothing; 0: none yet
  std::chrono::nanoseconds fastest_{};
  bool is_due_ = false;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void AddressCheck::remember() {
  known_.clear();
  if (!read_) return;
  read_([this](const Parameter& parameter) { known_.push_back({parameter.value.flat(), parameter.gradient.flat()}); });
}

DTRAIN_DEFINED bool AddressCheck::is_cheap() const noexcept {
  return known_.size() <= always_checked_parameters ||
         (last_checked_ > 0 && 2 * fastest_ < known_.size() * std::chrono::microseconds(1));
}

DTRAIN_DEFINED void AddressCheck::compare() {
  const auto begin = now_();
  std::size_t visited = 0;
  read_([this, &visited](const Parameter& parameter) {
    const std::size_t i = visited++;
    if (i >= known_.size()) return;
    require_same("value", i, parameter, known_[i].value, parameter.value.flat());
    require_same("gradient", i, parameter, known_[i].gradient, parameter.gradient.flat());
  });
  if (visited != known_.size()) {
    refuse_other_model("model's parameters()", format_text("{} parameters", {visited}), std::to_string(known_.size()));
  }
  const std::chrono::nanoseconds cost = now_() - begin;
  fastest_ = last_checked_ == 0 ? cost : std::min(fastest_, cost);
  last_checked_ = step_;
}

DTRAIN_DEFINED std::string AddressCheck::since_last_check() const {
  if (last_checked_ + 1 >= step_) return {};
  return format_text(
      "; the last check was in step {}: the results of all steps since then may be wrong "
      "(DdpOptions::check_addresses = true checks every step)",
      {last_checked_});
}

DTRAIN_DEFINED DTRAIN_NOT_INLINED void AddressCheck::refuse_change(const char* what, std::size_t i,
                                                                   const Parameter& parameter, const BufferView& before,
                                                                   const BufferView& now) const {
  const std::string which = format_text("{} of {}", {what, describe_parameter(i, parameter.name)});
  const auto text = [](const BufferView& view) {
    return format_text("{} bytes of {}", {view.bytes(), name(view.dtype)});
  };
  if (before.bytes() != now.bytes() || before.dtype != now.dtype) refuse_other_model(which, text(now), text(before));
  throw_error(Errc::invalid_argument,
              "in step {} the {}{} when DistributedDataParallel was given the model; a std::vector that grows moves "
              "its elements: keep the memory where it is, or make another DistributedDataParallel once it has moved{}",
              {step_, which, now.data == nullptr ? " has no memory, and had some" : " is at another address than",
               since_last_check()});
}

DTRAIN_DEFINED DTRAIN_NOT_INLINED void AddressCheck::refuse_other_model(const std::string& which,
                                                                        const std::string& now,
                                                                        const std::string& before) const {
  throw_error(Errc::invalid_argument,
              "in step {} the {} has {}, and had {} when DistributedDataParallel was given the model; make another "
              "DistributedDataParallel for a model that has changed{}",
              {step_, which, now, before, since_last_check()});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
