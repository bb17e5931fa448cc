#pragma once
/// @file
/// What a benchmark says at its end: goals, and whether they are met.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "dtrain/core/error.hpp"

namespace bench {

/// A number of three digits with its unit.
inline std::string text_of(double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3g%s", value, unit);
  return text;
}

/// "4 B", "64 KiB", "256 MiB".
inline std::string bytes_text(unsigned long long bytes) {
  constexpr const char* units[] = {" B", " KiB", " MiB", " GiB"};
  std::size_t unit = 0;
  while (unit < 3 && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + units[unit];
}

inline void print_goal(const std::string& goal, bool met, const std::string& measured) {
  std::printf("         goal: %s: %s (%s)\n", goal.c_str(), met ? "met" : "missed", measured.c_str());
}

/// Runs a benchmark, or says how to with --help. @param usage its flags, in one line
/// @returns main's exit code: a missed goal is none of its business
template <class Body>
int run_benchmark(const char* name, const char* usage, int argc, char** argv, Body body) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--help") {
      std::printf("usage: %s %s\n", name, usage);
      return 0;
    }
  }
  static_cast<void>(std::setvbuf(stdout, nullptr, _IOLBF, 0));  // a time limit may end this program
  ::setenv("DTRAIN_CHECK_VALUES", "0", 0);                      // nobody updates the values of most of the models
  try {
    body();
    return 0;
  } catch (const dtrain::Error& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    if (error.code() != dtrain::make_error_code(dtrain::Errc::usage)) {
      return 1;
    }
    std::fprintf(stderr, "usage: %s %s\n", name, usage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}

}  // namespace bench
