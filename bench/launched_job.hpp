#pragma once
/// @file
/// A job of this program's ranks, in a session of its own, and the lines with results that its ranks print.

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "bench/command.hpp"
#include "bench/launched.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"

namespace bench {

/// Starts `ranks` ranks, over mpirun or by dtrain's own launcher, with `arguments` behind launched_word. The session is
/// their own, because the scheduler gives each session its share. Blocking: until the job has ended.
/// @returns the words behind "result" of each line that has it @throws Error (protocol) if the job fails, or prints
/// none
inline std::vector<std::vector<std::string>> results_of_job(int ranks, bool over_mpirun,
                                                            const std::vector<std::string>& arguments) {
  const std::string count = std::to_string(ranks);
  std::vector<std::string> command{"setsid", "-w"};
  if (over_mpirun) {
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    command.insert(command.end(), {"mpirun", "--oversubscribe", "--bind-to", "none", "-n", count, own_path()});
  } else {
    command.insert(command.end(), {own_path(), "--nproc-per-node=" + count});
  }
  command.emplace_back(launched_word);
  command.insert(command.end(), arguments.begin(), arguments.end());
  const CommandOutput output = run_command(std::move(command), dtrain::Deadline::after(std::chrono::minutes(10)));
  std::vector<std::vector<std::string>> results;
  std::istringstream lines(output.text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find("result ");  // a launcher may write the rank before it
    if (begin == std::string::npos) continue;
    std::istringstream words(line.substr(begin + 7));
    std::vector<std::string>& result = results.emplace_back();
    for (std::string word; words >> word;)
      result.push_back(word);
  }
  if (!output.succeeded || results.empty()) {
    throw dtrain::Error(dtrain::Errc::protocol, "a job of " + count + " ranks failed");
  }
  return results;
}

}  // namespace bench
