#pragma once
/// @file
/// What a benchmark is doing, so that a run that a time limit ends shows where.

#include <chrono>
#include <cstdio>
#include <string>

namespace bench {

/// A line on stderr, with the seconds since the program's first one.
inline void tell_phase(const std::string& phase) {
  using Clock = std::chrono::steady_clock;
  static const Clock::time_point begin = Clock::now();
  std::fprintf(stderr, "%6.1f s: %s\n", std::chrono::duration<double>(Clock::now() - begin).count(), phase.c_str());
}

}  // namespace bench
