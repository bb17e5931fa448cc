#pragma once
/// @file
/// ReducerStatistics: counts and times of a reducer's steps, as a struct and as a line.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Totals of this rank so far. Failed steps are not counted.
struct ReducerStatistics {
  std::uint64_t steps = 0;
  std::uint64_t bytes_reduced = 0;  ///< of gradients, without padding
  std::size_t buckets = 0;          ///< in the plan
  StepTimes times;                  ///< sums over the steps
  bool is_measured = false;         ///< whether times.communication and times.hidden are known
  /// Steps in times.communication, times.hidden and times.exposed. On host streams: all steps. On CUDA, with
  /// DdpOptions::device_times: the steps that could be timed and that the device has completed.
  std::uint64_t measured_steps = 0;
  std::uint64_t unreduced_passes = 0;           ///< passes under no_sync() before these steps
  const char* why_nothing_is_hidden = nullptr;  ///< set if communication runs in finish() only
};

namespace detail {

/// "12.3 ms": the mean over `steps`.
std::string milliseconds_text(std::chrono::nanoseconds sum, std::uint64_t steps);

}  // namespace detail

/// Means over the steps: "a step of 200: forward 3.1 ms, backward 8.2 ms, communication 5 ms (hidden 4.4 ms), exposed
/// 0.6 ms, 100 MB in 12 buckets". Omits times that were not measured. Gives the reason if less than 1% was hidden.
std::string to_string(const ReducerStatistics& statistics);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::string detail::milliseconds_text(std::chrono::nanoseconds sum, std::uint64_t steps) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.3g ms",
                steps == 0 ? 0.0 : static_cast<double>(sum.count()) / 1e6 / static_cast<double>(steps));
  return text;
}

DTRAIN_DEFINED std::string to_string(const ReducerStatistics& statistics) {
  const StepTimes& times = statistics.times;
  const auto part = [&](const char* what, std::chrono::nanoseconds sum) {
    return what + detail::milliseconds_text(sum, statistics.steps);
  };
  const auto measured = [&](const char* what, std::chrono::nanoseconds sum) {
    return what + detail::milliseconds_text(sum, statistics.measured_steps);
  };
  char bytes[48];
  std::snprintf(bytes, sizeof(bytes), "%.3g MB",
                statistics.steps == 0
                    ? 0.0
                    : static_cast<double>(statistics.bytes_reduced) / 1e6 / static_cast<double>(statistics.steps));
  const bool explained = statistics.why_nothing_is_hidden != nullptr && 100 * times.hidden < times.communication;
  const std::string why = explained ? std::string(": ") + statistics.why_nothing_is_hidden : "";
  const std::string passes = statistics.unreduced_passes == 0
                                 ? ""
                                 : format_text(" and {} passes under no_sync()", {statistics.unreduced_passes});
  return format_text(
      "a step of {}{}: {}{}{}, {} in {}{}",
      {statistics.steps, passes, part("forward ", times.forward), part(", backward ", times.backward),
       statistics.is_measured
           ? format_text("{}{}{}){}", {measured(", communication ", times.communication),
                                       measured(" (hidden ", times.hidden), why, measured(", exposed ", times.exposed)})
           : part(", finish ", times.exposed),
       bytes, statistics.buckets, statistics.buckets == 1 ? " bucket" : " buckets"});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
