#pragma once
/// @file
/// Real ranks: this program started again as a launch::PerNode program, from its start to every rank's group.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>
#include <sstream>
#include <string>

#include "bench/command.hpp"
#include "bench/launched.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

/// main() of such a process: says when its group was there.
inline int run_launched(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    const auto now = dtrain::Deadline::Clock::now().time_since_epoch();
    double sum = group.rank();
    group.all_reduce(std::span(&sum, 1), dtrain::ReduceOp::sum);
    std::printf("group %d %.0f %lld\n", group.rank(), sum,
                static_cast<long long>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()));
    return 0;
  });
}

/// @param port 0: one that the system chooses @throws Error where a rank is missing or its sum is wrong
inline double time_launched_job(int ranks, int port = 0) {
  std::vector<std::string> command{own_path(), "--nproc-per-node=" + std::to_string(ranks), launched_word};
  if (port != 0) {
    command.insert(command.begin() + 1, "--master-port=" + std::to_string(port));
  }
  const CommandOutput output = run_command(std::move(command), dtrain::Deadline::after(std::chrono::seconds(60)));
  std::set<int> seen;
  double latest = 0;
  std::istringstream words(output.text);
  for (std::string word; words >> word;) {
    int rank = 0;
    double sum = 0;
    long long nanoseconds = 0;
    if (word == "group" && words >> rank >> sum >> nanoseconds && sum == ranks * (ranks - 1) / 2) {
      seen.insert(rank);
      const std::chrono::nanoseconds since = std::chrono::nanoseconds(nanoseconds) - output.begin.time_since_epoch();
      latest = std::max(latest, std::chrono::duration<double>(since).count());
    }
  }
  if (!output.succeeded || seen.size() != static_cast<std::size_t>(ranks)) {
    throw dtrain::Error(dtrain::Errc::protocol, "a job of " + std::to_string(ranks) + " real ranks failed");
  }
  return latest;
}

}  // namespace bench
