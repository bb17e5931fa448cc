#pragma once
/// @file
/// The flags of a benchmark: --ranks=2,4 --json=FILE, and what else it takes.

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/error.hpp"

namespace bench {

/// @throws Error (usage) for what is no number of at least 1
inline int positive(std::string_view flag, std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 1) {
    throw dtrain::Error(dtrain::Errc::usage, std::string(flag) + ": '" + std::string(text) + "' is no positive number");
  }
  return number;
}

/// The numbers of a list with commas.
inline std::vector<int> positives(std::string_view flag, std::string_view text) {
  std::vector<int> numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    numbers.push_back(positive(flag, text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return numbers;
}

struct Options {
  std::vector<int> ranks;
  std::string json{};  ///< empty: none is written
  int samples = 0;     ///< 0: as many as the benchmark thinks right
  std::vector<int> bytes{};
  bool trace = false;
  int beside = 0;               ///< busy processes beside the ranks
  std::string backend{};        ///< empty: the benchmark's own choice
  std::string timeline{};       ///< empty: none is written
  std::string model{};          ///< empty: all that the benchmark has
  std::string only{};           ///< part of the names of the rows that are measured; empty: all
  std::string device = "host";  ///< or cuda, where this program was built with it

  /// @param ranks those where the flag is not given @param further flags that the benchmark takes: --bytes, --trace
  /// @throws Error (usage)
  static Options parse(int argc, char** argv, std::vector<int> ranks,
                       std::initializer_list<std::string_view> further = {}) {
    const auto taken = [&](std::string_view wanted, std::string_view flag) {
      return flag == wanted && std::find(further.begin(), further.end(), flag) != further.end();
    };
    Options options;
    options.ranks = std::move(ranks);
    for (int i = 1; i < argc; ++i) {
      const std::string_view argument = argv[i];
      const std::size_t equals = argument.find('=');
      const std::string_view flag = argument.substr(0, equals);
      const std::string_view value = equals == std::string_view::npos ? "" : argument.substr(equals + 1);
      if (flag == "--ranks") {
        options.ranks = positives(flag, value);
      } else if (flag == "--json") {
        options.json = value;
      } else if (flag == "--samples") {
        options.samples = positive(flag, value);
      } else if (taken("--bytes", flag)) {
        options.bytes = positives(flag, value);
      } else if (taken("--backend", flag)) {
        options.backend = value;
      } else if (taken("--beside", flag)) {
        options.beside = positive(flag, value);
      } else if (taken("--timeline", flag)) {
        options.timeline = value;
      } else if (taken("--device", flag)) {
        options.device = known_device(value);
      } else if (taken("--model", flag)) {
        options.model = value;
      } else if (taken("--only", flag)) {
        options.only = value;
      } else if (taken("--trace", flag)) {
        options.trace = true;
      } else {
        throw dtrain::Error(dtrain::Errc::usage, "unknown argument '" + std::string(argument) + "'");
      }
    }
    return options;
  }

 private:
  static std::string known_device(std::string_view value) {
#if !DTRAIN_BENCH_CUDA
    if (value == "cuda") {
      throw dtrain::Error(dtrain::Errc::usage,
                          "--device=cuda: this program was built without CUDA; the preset gpu builds it where the CUDA "
                          "toolkit and NCCL are");
    }
#endif
    if (value != "host" && value != "cuda") {
      throw dtrain::Error(dtrain::Errc::usage, "--device: '" + std::string(value) + "' is neither host nor cuda");
    }
    return std::string(value);
  }
};

}  // namespace bench
