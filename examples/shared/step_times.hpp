#pragma once
/// @file
/// Times steps that are done in several ways.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

namespace shared {

/// The middle one of an odd number of times.
inline double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// Runs a step in each of the `ways`, functions, in turns. `prepare(turn)` comes before each turn and is not timed.
/// Collective, blocking: less than a second or so. @returns the median seconds of each on this rank
template <class Group, class Prepare, class... Ways>
std::array<double, sizeof...(Ways)> median_seconds(const Group& group, Prepare prepare, Ways... ways) {
  constexpr std::size_t turns = 21;
  std::array<std::vector<double>, sizeof...(Ways)> seconds;
  const auto time = [&group](auto& way, std::vector<double>& times) {
    group.barrier();  // what is measured is one step, not the wait for a rank that started late
    const auto begin = std::chrono::steady_clock::now();
    way();
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  };
  for (std::size_t turn = 0; turn < turns; ++turn) {
    prepare(turn);
    std::size_t at = 0;
    (time(ways, seconds[at++]), ...);
  }
  std::array<double, sizeof...(Ways)> medians{};
  std::ranges::transform(seconds, medians.begin(), median);
  return medians;
}

}  // namespace shared
