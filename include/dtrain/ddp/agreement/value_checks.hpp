#pragma once
/// @file
/// ValueChecks of a Driver: before which steps a wrapper compares the ranks' values and settings (DTRAIN_CHECK_VALUES).

#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Threads: one.
class ValueChecks {
 public:
  ValueChecks() = default;
  /// @param every steps from one comparison of the values to the next; 0: none @param at_end also when the wrapper ends
  /// @param settings also the samplers' settings
  ValueChecks(std::uint64_t every, bool at_end, bool settings)
      : every_(every), at_end_(at_end), settings_(settings), next_(every == 0 ? never : every) {}

  std::uint64_t every() const noexcept { return every_; }
  bool at_end() const noexcept { return at_end_; }
  bool compares_settings() const noexcept { return settings_; }

  /// The samplers' settings are compared before the next step.
  void compare_settings() noexcept {
    compares_next_ = true;
    next_ = 0;
  }

  /// Comparisons before a step.
  struct Due {
    bool settings = false;
    bool values = false;
  };
  /// Whether anything is. @param steps before it
  bool is_due(std::uint64_t steps) const noexcept { return steps >= next_; }
  /// @pre is_due(steps)
  Due take(std::uint64_t steps) noexcept {
    next_ = every_ == 0 ? never : (steps / every_ + 1) * every_;
    return {std::exchange(compares_next_, false), every_ != 0 && steps != 0 && steps % every_ == 0};
  }

 private:
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

  std::uint64_t every_ = 0;
  bool at_end_ = false;
  bool settings_ = false;
  bool compares_next_ = false;  ///< settings
  std::uint64_t next_ = never;  ///< steps before it
};

/// Whether the ranks' statuses get a digest of the values: after 8 steps, 9, ... 16, 18, ... 32, 36, ..., eight times
/// while the number doubles, so that digests are seconds apart in long trainings of short steps, too.
constexpr bool are_values_noted_after(std::uint64_t steps) noexcept {
  return steps >= 8 && steps % (std::bit_floor(steps) / 8) == 0;
}

/// From the text of DTRAIN_CHECK_VALUES: null or an empty text compares at the end, N also before every N-th step, and
/// 0 never. Values that are not compared, on a GPU or unequal by design, become a warning in the log if N is given.
/// @throws Error (usage) for another text than a number
/// @param keeps_values_equal whether each step leaves the values of all ranks equal
ValueChecks value_checks(const char* text, std::span<const Parameter> parameters, bool keeps_values_equal);

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <charconv>
#include <string_view>
#include <system_error>

#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/agreement/value_comparison.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED ValueChecks value_checks(const char* text, std::span<const Parameter> parameters,
                                        bool keeps_values_equal) {
  const bool is_on_host = are_on_host(parameters);
  const bool may_compare = is_on_host && keeps_values_equal;
  const std::string_view digits = text == nullptr ? std::string_view() : text;
  std::uint64_t steps = 0;
  if (digits.empty()) return {0, may_compare, true};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), steps);
  if (error != std::errc{} || end != digits.data() + digits.size()) {
    throw_error(
        Errc::usage,
        "DTRAIN_CHECK_VALUES={} is not a number of steps; set how many steps lie between two comparisons of the "
        "ranks' values, or 0 for none",
        {in_quotes(digits)});
  }
  if (steps != 0 && !may_compare) {
    log(LogLevel::warning, format_text("DTRAIN_CHECK_VALUES={} does not compare the values of this model: {}",
                                       {digits, is_on_host ? "those of its ranks differ between two averages of a hook"
                                                           : "they are on a GPU"}));
  }
  return {may_compare ? steps : 0, may_compare && steps != 0, steps != 0};
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
