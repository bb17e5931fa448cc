#pragma once
/// @file
/// What was measured at one size, as a line for people and as rows for scripts.

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/goal.hpp"
#include "bench/result_rows.hpp"

namespace bench {

/// One system's seconds at one size.
struct Measured {
  std::vector<double> seconds;
  std::string settings;  ///< a peer's, or the limit's kernel
  double at_median() const { return median(seconds); }
};

/// All systems' at one size, by name: bound, foreign, openmpi, gloo, limit.
struct SizeResult {
  int ranks = 0;
  std::uint64_t bytes = 0;
  std::map<std::string, Measured> of{};

  bool has(const std::string& name) const { return of.contains(name) && !of.at(name).seconds.empty(); }
  double seconds(const std::string& name) const { return of.at(name).at_median(); }
  /// How many times as long as dtrain's.
  double ratio(const std::string& name, const std::string& buffer) const { return seconds(name) / seconds(buffer); }
  /// The faster peer; empty where there is none.
  std::string better_peer() const {
    std::string best;
    for (const std::string name : {"openmpi", "gloo"}) {
      if (has(name) && (best.empty() || seconds(name) < seconds(best))) {
        best = name;
      }
    }
    return best;
  }
};

inline void print_table_head(int ranks) {
  std::printf("\n%d ranks, f32, microseconds (times: bound's, foreign's)\n", ranks);
  std::printf("%10s %11s %11s %23s %29s %23s  %s\n", "bytes", "bound", "foreign", "openmpi", "gloo", "limit",
              "settings of the peer, kernel of the limit");
}

inline void print_table_line(const SizeResult& result) {
  std::printf("%10s %11.2f %11.2f", bytes_text(result.bytes).c_str(), result.seconds("bound") * 1e6,
              result.seconds("foreign") * 1e6);
  for (const std::string name : {"openmpi", "gloo"}) {
    if (result.has(name)) {
      std::printf(" %12.2f (%5.2f %5.2f)", result.seconds(name) * 1e6, result.ratio(name, "bound"),
                  result.ratio(name, "foreign"));
    } else {
      std::printf(" %26s", "missing");
    }
  }
  if (result.has("limit")) {
    std::printf(" %12.2f (%5.3f)", result.seconds("limit") * 1e6, result.ratio("limit", "bound"));
  } else {
    std::printf(" %20s", "");
  }
  for (const std::string name : {"openmpi", "limit"}) {
    if (result.has(name)) {
      std::printf("  %s", result.of.at(name).settings.c_str());
    }
  }
  std::printf("\n");
  std::fflush(stdout);
}

/// dtrain's rows, and each peer's and the limit's beside both of them.
inline void keep_rows(ResultRows& rows, const char* bench, const SizeResult& result) {
  const auto row_of = [&](const std::string& name, const std::string& system) {
    Row row{bench, system, "all_reduce", result.ranks, 1, result.bytes, result.seconds(name)};
    row.samples = result.of.at(name).seconds.size();
    return row.with("dtype", std::string("f32"));
  };
  for (const std::string buffer : {"bound", "foreign"}) {
    rows.keep(row_of(buffer, "dtrain").with("buffer", buffer));
    for (const std::string name : {"openmpi", "gloo", "limit"}) {
      if (result.has(name)) {
        Row row = row_of(name, name).with("buffer", buffer).with("ratio", result.ratio(name, buffer));
        rows.keep(name == "gloo" ? row
                                 : row.with(name == "limit" ? "kernel" : "settings", result.of.at(name).settings));
      }
    }
  }
}

}  // namespace bench
