#pragma once
// Runs the example gpt2 with a small model.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/program.hpp"
#include "support/skip.hpp"
#include "support/summary_file.hpp"
#include "support/temporary_directory.hpp"

namespace gpt2_program {

using support::Program;
using support::Result;
using support::SummaryFile;
using support::TemporaryDirectory;

inline const std::string example = DTRAIN_EXAMPLES_DIR "/gpt2";
inline const std::string text = "/usr/share/common-licenses";

inline const std::vector<std::string> small_model{"--layers=2", "--channels=64", "--context=32", "--steps=20"};

inline bool can_run() {
  return dtrain_test::needs(std::filesystem::exists(example), "gpt2 was not built: it needs Eigen") &&
         dtrain_test::needs(std::filesystem::exists(text),
                            "the text is missing: " + text + " is in Debian's package base-files");
}

inline Result run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), small_model.begin(), small_model.end());  // later ones win
  return support::run(example, std::move(arguments), {}, std::chrono::seconds(60));
}

/// A training of 20 steps of a small model with `arguments` added, which is to succeed.
inline SummaryFile train(std::vector<std::string> arguments) {
  const TemporaryDirectory folder;
  arguments.push_back("--summary=" + folder.path + "/summary");
  const Result result = run(std::move(arguments));
  INFO(result.error);
  REQUIRE(result.exit_code == 0);
  return SummaryFile(folder.path + "/summary");
}

inline std::vector<double> losses_of(const SummaryFile& summary) {
  const std::string field = summary.text("losses");
  std::vector<double> losses;
  for (std::size_t at = 0; at != std::string::npos; at = field.find(' ', at + 1))
    losses.push_back(std::strtod(field.c_str() + at + 1, nullptr));
  return losses;
}

/// The largest difference between the losses of one step.
inline double difference(const std::vector<double>& one, const std::vector<double>& other) {
  REQUIRE(one.size() == other.size());
  double largest = 0;
  for (std::size_t i = 0; i < one.size(); ++i)
    largest = std::max(largest, std::abs(one[i] - other[i]));
  return largest;
}

}  // namespace gpt2_program
