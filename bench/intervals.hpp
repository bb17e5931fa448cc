#pragma once
/// @file
/// What ranks tell a benchmark on stdout: `interval KIND SAMPLE BEGIN END`, in nanoseconds of the clock that all
/// processes of a machine share, and `fact NAME NUMBER`.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "bench/all_reduce/protocol.hpp"

namespace bench {

inline void tell_interval(const char* kind, int sample, const Interval& interval) {
  std::printf("interval %s %d %lld %lld\n", kind, sample, static_cast<long long>(interval.begin),
              static_cast<long long>(interval.end));
}

inline void tell_fact(const char* name, double value) {
  std::printf("fact %s %.17g\n", name, value);
}

/// What all ranks of a job said. A sample lasts from when its first rank began to when its last one was done.
struct Told {
  std::map<std::string, std::vector<double>> seconds;  ///< of each kind, by sample
  std::map<std::string, std::vector<double>> facts;    ///< of each name, one for each rank that said it

  static Told from(const std::string& text) {
    std::map<std::pair<std::string, int>, Interval> intervals;
    Told told;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t begin = std::min(line.find("interval "), line.find("fact "));
      std::istringstream words(begin == std::string::npos ? "" : line.substr(begin));
      std::string word;
      std::string name;
      int sample = 0;
      Interval own;
      double value = 0;
      words >> word >> name;
      if (word == "interval" && words >> sample >> own.begin >> own.end) {
        Interval& interval = intervals.try_emplace({name, sample}, own).first->second;
        interval = {std::min(interval.begin, own.begin), std::max(interval.end, own.end)};
      } else if (word == "fact" && words >> value) {
        told.facts[name].push_back(value);
      }
    }
    for (const auto& [key, interval] : intervals) {
      told.seconds[key.first].push_back(static_cast<double>(interval.end - interval.begin) * 1e-9);
    }
    return told;
  }
};

}  // namespace bench
