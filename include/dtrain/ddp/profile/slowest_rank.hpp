#pragma once
/// @file
/// Slowest rank: the rank with the longest forward and backward passes, for which the other ranks wait.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/profile/reducer_statistics.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The rank with the longest mean forward and backward time.
/// @ingroup times
struct SlowestRank {
  int rank = 0;                          ///< in the group
  std::chrono::nanoseconds computing{};  ///< mean forward and backward time of a step on this rank
  std::chrono::nanoseconds typical{};    ///< the mean of all ranks
};

/// "slowest rank 3 (11.2 ms a step, mean 10.1 ms)".
/// @ingroup times
std::string to_string(const SlowestRank& slowest);

void fields(Serializer& of, SlowestRank& slowest);

/// Collective, blocking: rank 0 reads every rank's times and publishes the slowest. O(ranks) messages to rank 0: for
/// reports, not for every step. @param prefix used once; `deadline` bounds each wait
/// @param notice_after time until a rank logs a warning with the names of missing ranks
SlowestRank find_slowest_rank_blocking(const backend::StoreRef& store, const std::string& prefix,
                                       const ReducerStatistics& mine, int rank, int world_size, Deadline deadline,
                                       std::chrono::milliseconds notice_after = std::chrono::seconds(10));

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::string to_string(const SlowestRank& slowest) {
  return format_text(
      "slowest rank {} ({} a step, mean {})",
      {slowest.rank, detail::milliseconds_text(slowest.computing, 1), detail::milliseconds_text(slowest.typical, 1)});
}

DTRAIN_DEFINED void fields(Serializer& of, SlowestRank& slowest) {
  of.number(slowest.rank, 0, std::numeric_limits<int>::max());
  fields(of, slowest.computing);
  fields(of, slowest.typical);
}

DTRAIN_DEFINED SlowestRank find_slowest_rank_blocking(const backend::StoreRef& store, const std::string& prefix,
                                                      const ReducerStatistics& mine, int rank, int world_size,
                                                      Deadline deadline, std::chrono::milliseconds notice_after) {
  const auto own = [&] {
    const auto steps = static_cast<std::int64_t>(mine.steps == 0 ? 1 : mine.steps);
    return to_bytes((mine.times.forward + mine.times.backward) / steps);
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
  const auto name = [](int other) { return "rank " + std::to_string(other); };
  const char* const doing = "summary() or slowest_rank(), which every rank calls";
  backend::StoreRank self{store, rank, world_size, rank, deadline, doing, name};
  self.notice_after = notice_after;
  return from_bytes<SlowestRank>(backend::store_gather(self, prefix + "computing", own, find), "the slowest rank");
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
