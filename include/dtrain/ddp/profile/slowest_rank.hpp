#pragma once
/// @file
/// Slowest rank: the rank with the longest forward and backward passes, for which the other ranks wait.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
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

namespace detail {

/// Removes the number at the front of `text`, and the character after it. @returns the number; 0 if there is none
inline std::int64_t take_number(std::string_view& text) {
  std::int64_t number = 0;
  std::size_t length = 0;
  while (length < text.size() && length < 18 && text[length] >= '0' && text[length] <= '9') {
    number = number * 10 + (text[length++] - '0');
  }
  text.remove_prefix(length < text.size() ? length + 1 : length);
  return number;
}

}  // namespace detail

DTRAIN_DEFINED SlowestRank find_slowest_rank_blocking(const backend::StoreRef& store, const std::string& prefix,
                                                      const ReducerStatistics& mine, int rank, int world_size,
                                                      Deadline deadline, std::chrono::milliseconds notice_after) {
  const auto own = [&] {
    const auto steps = static_cast<std::int64_t>(mine.steps == 0 ? 1 : mine.steps);
    return std::to_string((mine.times.forward + mine.times.backward).count() / steps);
  };
  const auto find = [&](const std::vector<std::string>& texts) {
    std::vector<std::int64_t> times;
    for (const std::string& text : texts) {
      std::string_view rest = text;
      times.push_back(detail::take_number(rest));
    }
    const auto longest = std::max_element(times.begin(), times.end());
    const double mean = std::accumulate(times.begin(), times.end(), 0.0) / world_size;
    return format_text("{} {} {}", {longest - times.begin(), *longest, static_cast<std::int64_t>(mean)});
  };
  const auto name = [](int other) { return "rank " + std::to_string(other); };
  const char* const doing = "summary() or slowest_rank(), which every rank calls";
  backend::StoreRank self{store, rank, world_size, rank, deadline, doing, name};
  self.notice_after = notice_after;
  const std::string found = backend::store_gather(self, prefix + "computing", own, find);
  std::string_view rest = found;
  SlowestRank slowest;
  slowest.rank = static_cast<int>(detail::take_number(rest) % world_size);
  slowest.computing = std::chrono::nanoseconds(detail::take_number(rest));
  slowest.typical = std::chrono::nanoseconds(detail::take_number(rest));
  return slowest;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
