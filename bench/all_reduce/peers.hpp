#pragma once
/// @file
/// How the ranks of each system are started.

#include <unistd.h>

#include <string>
#include <vector>

#include "bench/all_reduce/rank_group.hpp"
#include "bench/command.hpp"
#include "bench/launched.hpp"
#include "bench/peer_python.hpp"

namespace bench {

/// One of a system's ways to be run, and what to call it.
struct PeerSettings {
  std::string text;
  std::vector<std::string> words;
};

/// Open MPI's ways on one host that can be the best: bound ranks spin, and where there are more ranks than cores they
/// have to yield.
inline std::vector<PeerSettings> openmpi_settings(int ranks) {
  const bool crowded = ranks > ::sysconf(_SC_NPROCESSORS_ONLN);
  const std::string yield = crowded ? "1" : "0";
  const std::vector<std::string> common{"--mca", "btl", "self,vader", "--mca", "mpi_yield_when_idle", yield};
  const std::string bind = crowded ? "none" : "core";
  std::vector<PeerSettings> settings;
  for (const std::string copy : {"cma", "none"}) {
    PeerSettings one{"btl=self,vader copy=" + copy + " yield=" + yield + " bind=" + bind, common};
    one.words.insert(one.words.end(), {"--mca", "btl_vader_single_copy_mechanism", copy, "--bind-to", bind});
    settings.push_back(std::move(one));
  }
  return settings;
}

inline GroupCommand openmpi_command(const std::string& mpirun, const std::string& program, int ranks,
                                    const PeerSettings& settings) {
  GroupCommand command;
  command.words = {mpirun, "--oversubscribe", "-n", std::to_string(ranks)};
  command.words.insert(command.words.end(), settings.words.begin(), settings.words.end());
  command.words.insert(command.words.end(), {program, "{socket}"});
  command.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
  return command;
}

inline GroupCommand gloo_command(const std::string& python, int ranks) {
  return {{python, "-B", DTRAIN_BENCH_DIR "/peers/all_reduce_gloo.py", std::to_string(ranks), "{socket}"},
          {{"GLOO_SOCKET_IFNAME", "lo"}, {"OMP_NUM_THREADS", "1"}}};
}

/// This program again. @param bytes the most that a request's buffers take together
inline GroupCommand dtrain_command(int ranks, std::size_t bytes) {
  return {{own_path(), "--nproc-per-node=" + std::to_string(ranks), launched_word, "{socket}", std::to_string(bytes)},
          {}};
}

}  // namespace bench
