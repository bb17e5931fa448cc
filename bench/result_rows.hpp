#pragma once
/// @file
/// What a benchmark measured: a table for people, JSON for scripts.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/write_file.hpp"

namespace bench {

/// The middle one; of an even number the mean of the middle two. 0 for none.
inline double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// One measured row.
struct Row {
  std::string bench;
  std::string system;  ///< dtrain, or the name of a peer or a limit
  std::string what;    ///< what was timed, where a benchmark times several things
  int ranks = 0;
  int hosts = 1;
  std::uint64_t bytes = 0;
  double median_seconds = 0;
  std::size_t samples = 0;
  /// Further fields, their values as JSON.
  std::vector<std::pair<std::string, std::string>> extra{};

  Row& with(std::string name, double value) {
    char text[64];
    std::snprintf(text, sizeof text, "%.6g", value);
    extra.emplace_back(std::move(name), text);
    return *this;
  }
  Row& with_bytes(std::string name, std::uint64_t count) {
    extra.emplace_back(std::move(name), std::to_string(count));
    return *this;
  }
  /// @param text has no characters that JSON escapes
  Row& with(std::string name, const std::string& text) {
    extra.emplace_back(std::move(name), '"' + text + '"');
    return *this;
  }
};

/// Prints rows as they come, and writes all of them at the end.
class ResultRows {
 public:
  void add(const Row& row) {
    if (rows_.empty()) {
      std::printf("%-8s %-24s %7s %13s %8s\n", "system", "what", "ranks", "median", "samples");
    }
    std::printf("%-8s %-24s %7d %10.3f ms %8zu", row.system.c_str(), row.what.c_str(), row.ranks,
                row.median_seconds * 1e3, row.samples);
    for (const auto& [name, value] : row.extra) {
      std::printf("  %s %s", name.c_str(), value.c_str());
    }
    std::printf("\n");
    std::fflush(stdout);
    keep(row);
  }

  /// For the JSON alone, where the benchmark prints a table of its own.
  void keep(const Row& row) { rows_.push_back(row); }

  /// Does nothing if the path is empty. @throws Error (posix)
  void write_json(const std::string& path) const {
    if (path.empty()) return;
    std::string text = "[";
    for (const Row& row : rows_) {
      char numbers[160];
      std::snprintf(numbers, sizeof numbers,
                    "\"ranks\": %d, \"hosts\": %d, \"bytes\": %llu, \"median_seconds\": %.9g, \"samples\": %zu",
                    row.ranks, row.hosts, static_cast<unsigned long long>(row.bytes), row.median_seconds, row.samples);
      text += text.size() == 1 ? "\n" : ",\n";
      text +=
          "  {\"bench\": \"" + row.bench + "\", \"system\": \"" + row.system + "\", \"what\": \"" + row.what + "\", ";
      text += numbers;
      for (const auto& [name, value] : row.extra) {
        text += ", \"" + name + "\": " + value;
      }
      text += "}";
    }
    text += "\n]\n";
    write_file(path, text);
  }

 private:
  std::vector<Row> rows_;
};

}  // namespace bench
