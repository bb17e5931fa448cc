#pragma once
/// @file
/// ReducerStatistics: counts and times of a wrapper's steps. SlowestRank: the rank with the longest computation.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "dtrain/core/compressed_traffic.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/group/group_handle.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Totals of this rank's steps so far. Failed steps are not counted.
/// @ingroup times
struct ReducerStatistics {
  std::uint64_t steps = 0;
  std::uint64_t bytes_reduced = 0;  ///< bytes of gradients, without padding
  std::size_t buckets = 0;          ///< buckets in the plan
  StepTimes times;                  ///< sums over the steps
  bool is_measured = false;         ///< whether times.communication and times.hidden are known
  /// Steps in times.communication, times.hidden and times.exposed. On host streams: all steps. On CUDA, with
  /// DdpOptions::device_times: the steps that could be timed and that the device has completed.
  std::uint64_t measured_steps = 0;
  std::uint64_t unreduced_passes = 0;           ///< passes under no_sync() before these steps
  const char* why_nothing_is_hidden = nullptr;  ///< set if communication runs in finish() only
  /// Whether begin() was called: `times.forward` may contain backward passes, and is called computing in texts.
  bool program_drives_steps = false;
  CompressedTraffic hook{};  ///< traffic of a gradient hook's collectives, failed steps included
  CompressedTraffic wire{};  ///< traffic of this rank in a topology that sends f32 in 16 bits
};

/// @param counts steps, bytes and buckets, and whether all steps are measured
ReducerStatistics statistics_of(const StepMeter& meter, ReducerStatistics counts, const CompressedTraffic& hook,
                                const CompressedTraffic& wire) noexcept;

/// Means over the steps: "a step of 200: forward 3.1 ms, backward 8.2 ms, communication 5 ms (hidden 4.4 ms), exposed
/// 0.6 ms, 100 MB in 12 buckets"; with begin() "computing 3.1 ms", because a library may have made the backward pass
/// before it; ", of both waiting 2 ms" from 1% on. Omits times that were not measured. Gives the reason if less than 1%
/// was hidden. With a hook or a wire type: ", sent as 50 MB (50 MB saved, compressing 1.2 ms)".
/// @ingroup times
std::string to_string(const ReducerStatistics& statistics);

/// The rank with the longest mean forward and backward time, without StepTimes::waiting.
/// @ingroup times
struct SlowestRank {
  int rank = 0;                          ///< the rank in the group
  std::chrono::nanoseconds computing{};  ///< mean forward and backward time of a step on this rank
  std::chrono::nanoseconds typical{};    ///< the mean of all ranks
};

/// "slowest rank 3 (11.2 ms a step, mean 10.1 ms)".
/// @ingroup times
std::string to_string(const SlowestRank& slowest);

/// Collective, blocking: rank 0 reads every rank's times and publishes the slowest. O(ranks) messages to rank 0: for
/// reports, not for every step. @param purpose each wrapper's own @throws as GroupHandle::gather
SlowestRank find_slowest_rank_blocking(const group::GroupHandle& group, const std::string& purpose,
                                       const ReducerStatistics& mine, const group::StoreWait& wait = {});

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <cmath>

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED ReducerStatistics statistics_of(const StepMeter& meter, ReducerStatistics counts,
                                               const CompressedTraffic& hook, const CompressedTraffic& wire) noexcept {
  counts.times = meter.times();
  counts.measured_steps = meter.measured_steps();
  counts.is_measured = counts.is_measured || counts.measured_steps > 0;
  counts.unreduced_passes = meter.unreduced_passes();
  counts.hook = hook;
  counts.wire = wire;
  return counts;
}

namespace detail {

/// A mean, in millions, with three digits, or with all before the point.
inline std::string millions_text(double sum, std::uint64_t steps, const char* unit) {
  const double mean = steps == 0 ? 0.0 : sum / 1e6 / static_cast<double>(steps);
  return format_text("{} {}", {mean < 999.5 ? number_text(mean, 3) : number_text(std::round(mean), 15), unit});
}

/// "12.3 ms": the mean over `steps`.
inline std::string milliseconds_text(std::chrono::nanoseconds sum, std::uint64_t steps) {
  return millions_text(static_cast<double>(sum.count()), steps, "ms");
}

/// "12.3 MB": the mean over `steps`.
inline std::string megabytes_text(std::uint64_t bytes, std::uint64_t steps) {
  return millions_text(static_cast<double>(bytes), steps, "MB");
}

/// Savings of a compression; empty if there is none.
inline std::string traffic_text(const char* what, const CompressedTraffic& traffic, std::uint64_t steps) {
  if (traffic.bytes == 0) return {};
  const bool saves = traffic.bytes_sent <= traffic.bytes;
  const std::uint64_t difference = saves ? traffic.bytes - traffic.bytes_sent : traffic.bytes_sent - traffic.bytes;
  return format_text("{}{} ({} {}, compressing {})",
                     {what, megabytes_text(traffic.bytes_sent, steps), megabytes_text(difference, steps),
                      saves ? "saved" : "more", milliseconds_text(traffic.compressing, steps)});
}

}  // namespace detail

DTRAIN_DEFINED std::string to_string(const ReducerStatistics& statistics) {
  const StepTimes& times = statistics.times;
  const auto part = [&](const char* what, std::chrono::nanoseconds sum) {
    return what + detail::milliseconds_text(sum, statistics.steps);
  };
  const auto measured = [&](const char* what, std::chrono::nanoseconds sum) {
    return what + detail::milliseconds_text(sum, statistics.measured_steps);
  };
  const bool explained = statistics.why_nothing_is_hidden != nullptr && 100 * times.hidden < times.communication;
  const std::string why = explained ? std::string(": ") + statistics.why_nothing_is_hidden : "";
  const std::string passes = statistics.unreduced_passes == 0
                                 ? ""
                                 : format_text(" and {} passes under no_sync()", {statistics.unreduced_passes});
  const bool waits = 100 * times.waiting >= times.forward + times.backward && times.waiting.count() > 0;
  return format_text(
      "a step of {}{}: {}{}{}{}, {} in {}{}{}{}",
      {statistics.steps, passes, part(statistics.program_drives_steps ? "computing " : "forward ", times.forward),
       part(", backward ", times.backward), waits ? part(", of both waiting ", times.waiting) : "",
       statistics.is_measured
           ? format_text("{}{}{}){}", {measured(", communication ", times.communication),
                                       measured(" (hidden ", times.hidden), why, measured(", exposed ", times.exposed)})
           : part(", finish ", times.exposed),
       detail::megabytes_text(statistics.bytes_reduced, statistics.steps), statistics.buckets,
       statistics.buckets == 1 ? " bucket" : " buckets",
       detail::traffic_text(", sent as ", statistics.hook, statistics.steps),
       detail::traffic_text(", on the wire ", statistics.wire, statistics.steps)});
}

DTRAIN_DEFINED std::string to_string(const SlowestRank& slowest) {
  return format_text(
      "slowest rank {} ({} a step, mean {})",
      {slowest.rank, detail::milliseconds_text(slowest.computing, 1), detail::milliseconds_text(slowest.typical, 1)});
}

inline void fields(Serializer& of, SlowestRank& slowest) {
  of.number(slowest.rank, 0, std::numeric_limits<int>::max());
  fields(of, slowest.computing);
  fields(of, slowest.typical);
}

DTRAIN_DEFINED SlowestRank find_slowest_rank_blocking(const group::GroupHandle& group, const std::string& purpose,
                                                      const ReducerStatistics& mine, const group::StoreWait& wait) {
  const int world_size = group.members().world_size;
  const auto own = [&] {
    const auto steps = static_cast<std::int64_t>(mine.steps == 0 ? 1 : mine.steps);
    return to_bytes((mine.times.forward + mine.times.backward - mine.times.waiting) / steps);
  };
  const auto find = [&](const std::vector<std::string>& texts) {
    SlowestRank slowest;
    double sum = 0;
    for (std::size_t other = 0; other < texts.size(); ++other) {
      const auto time = from_bytes<std::chrono::nanoseconds>(texts[other], "a rank's time of a step");
      sum += static_cast<double>(time.count());
      if (time > slowest.computing) {
        slowest.rank = static_cast<int>(other);
        slowest.computing = time;
      }
    }
    slowest.typical = std::chrono::nanoseconds(static_cast<std::int64_t>(sum / world_size));
    return to_bytes(slowest);
  };
  const auto slowest = from_bytes<SlowestRank>(
      group.gather(purpose, "summary() or slowest_rank(), which every rank calls", own, find, wait),
      "the slowest rank");
  if (slowest.rank < 0 || slowest.rank >= world_size) {
    throw_error(Errc::protocol, "the slowest of {} ranks is said to be rank {}", {world_size, slowest.rank});
  }
  return slowest;
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS

namespace DTRAIN_NAMESPACE {
using ddp::ReducerStatistics;
using ddp::SlowestRank;
using ddp::StepTimes;
}  // namespace DTRAIN_NAMESPACE
