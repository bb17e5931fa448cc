#pragma once
/// @file
/// Slowest rank: the rank with the longest forward and backward passes, for which the others wait.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "dtrain/core/deadline.hpp"
#include "dtrain/ddp/profile/reducer_statistics.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The rank with the longest mean forward and backward time.
struct SlowestRank {
  int rank = 0;                          ///< in the group
  std::chrono::nanoseconds computing{};  ///< its mean forward and backward time of a step
  std::chrono::nanoseconds typical{};    ///< the mean of all ranks
};

/// "slowest rank 3 (11.2 ms a step, mean 10.1 ms)".
inline std::string to_string(const SlowestRank& slowest) {
  return "slowest rank " + std::to_string(slowest.rank) + " (" + detail::milliseconds_text(slowest.computing, 1) +
         " a step, mean " + detail::milliseconds_text(slowest.typical, 1) + ")";
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

/// Collective, blocking: rank 0 reads every rank's times and publishes the slowest. O(ranks) messages to rank 0: for
/// reports, not for every step. @param prefix used once; `deadline` bounds each wait
template <class Store>
SlowestRank find_slowest_rank_blocking(Store store, const std::string& prefix, const ReducerStatistics& mine, int rank,
                                       int world_size, Deadline deadline) {
  const auto steps = static_cast<std::int64_t>(mine.steps == 0 ? 1 : mine.steps);
  const std::int64_t computing = (mine.times.forward + mine.times.backward).count() / steps;
  SlowestRank slowest{rank, std::chrono::nanoseconds(computing), std::chrono::nanoseconds(computing)};
  if (world_size == 1) {
    return slowest;
  }
  if (rank != 0) {
    store.set(prefix + "computing/" + std::to_string(rank), std::to_string(computing), deadline).wait();
    const std::string reply = store.take(prefix + "slowest", world_size - 1, deadline).wait();
    std::string_view rest = reply;
    slowest.rank = static_cast<int>(detail::take_number(rest) % world_size);
    slowest.computing = std::chrono::nanoseconds(detail::take_number(rest));
    slowest.typical = std::chrono::nanoseconds(detail::take_number(rest));
    return slowest;
  }
  double sum = static_cast<double>(computing);
  for (int other = 1; other < world_size; ++other) {
    const std::string key = prefix + "computing/" + std::to_string(other);
    const std::string reply = store.take(key, 1, deadline).wait();
    std::string_view rest = reply;
    const std::chrono::nanoseconds of_other(detail::take_number(rest));
    sum += static_cast<double>(of_other.count());
    if (of_other > slowest.computing) {
      slowest.rank = other;
      slowest.computing = of_other;
    }
  }
  slowest.typical = std::chrono::nanoseconds(static_cast<std::int64_t>(sum / world_size));
  store
      .set(prefix + "slowest",
           std::to_string(slowest.rank) + " " + std::to_string(slowest.computing.count()) + " " +
               std::to_string(slowest.typical.count()),
           deadline)
      .wait();
  return slowest;
}

}  // namespace DTRAIN_NAMESPACE::ddp
