#pragma once
/// @file
/// One round of a kill storm: which job, whom it hits, when and how. All of it follows from a seed.

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/launch_probe.hpp"

namespace support {

/// In restarting, a first worker has been killed before; in between, the second blow comes before the launcher has said
/// that the next attempt begins.
enum class Phase { start, rendezvous, first_step, steady, leaving, restarting, between };
enum class Victim { worker, grandchild, launcher };
enum class Blow { kill, terminate, stop_and_kill };

struct StormRound {
  std::uint32_t seed = 0;
  bool shared = false;       ///< through shared memory, on one node
  std::vector<int> workers;  ///< of each node
  int max_restarts = 0;
  Phase phase = Phase::start;
  Victim victim = Victim::worker;
  int node = 0;        ///< of the victim
  int rank = 0;        ///< the victim, or its parent
  int first_rank = 0;  ///< the one that is killed before, for a restart
  Blow blow = Blow::kill;
  bool twice = false;  ///< the next rank, or the other node's launcher, is hit in the same moment
  int delay_us = 0;    ///< after the phase was seen to begin
  int stopped_us = 0;
  std::string grandchild;  ///< as in programs/store_training.cpp
  int straggle_ms = 0;
  int linger_ms = 0;

  int world_size() const {
    int size = 0;
    for (const int each : workers)
      size += each;
    return size;
  }
  int node_count() const { return static_cast<int>(workers.size()); }
  bool restarts() const { return phase == Phase::restarting || phase == Phase::between; }
  int next_rank() const { return (rank + 1) % world_size(); }
  int node_of(int of_rank) const { return of_rank < workers.front() ? 0 : 1; }
  int local_rank_of(int of_rank) const { return of_rank - (node_of(of_rank) == 0 ? 0 : workers.front()); }
};

inline std::string name_of(Phase phase) {
  constexpr std::array<const char*, 7> names{"start",   "rendezvous", "first step", "steady",
                                             "leaving", "restarting", "between"};
  return names[static_cast<std::size_t>(phase)];
}

/// In one line, with all that is needed to see what happened; the seed alone repeats it.
inline std::string to_string(const StormRound& round) {
  std::string workers;
  for (const int each : round.workers)
    workers += (workers.empty() ? "" : "+") + std::to_string(each);
  const std::string rank = std::to_string(round.rank);
  const std::string victim = round.victim == Victim::worker ? "rank " + rank
                             : round.victim == Victim::grandchild
                                 ? "the grandchild of rank " + rank
                                 : "the launcher of node " + std::to_string(round.node);
  const std::string blow = round.blow == Blow::kill ? "SIGKILL"
                           : round.blow == Blow::terminate
                               ? "SIGTERM"
                               : "SIGSTOP, " + std::to_string(round.stopped_us) + " us later SIGKILL";
  return "seed " + std::to_string(round.seed) + ": " + workers + " ranks" + (round.shared ? " (shared memory)" : "") +
         ", restarts " + std::to_string(round.max_restarts) + ", grandchildren " +
         (round.grandchild.empty() ? "none" : round.grandchild) + ", straggle " + std::to_string(round.straggle_ms) +
         " ms, linger " + std::to_string(round.linger_ms) + " ms; " +
         (round.restarts() ? "SIGKILL to rank " + std::to_string(round.first_rank) + ", then " : std::string()) +
         name_of(round.phase) + " + " + std::to_string(round.delay_us) + " us: " + blow + " to " + victim +
         (!round.twice                       ? ""
          : round.victim == Victim::launcher ? " and to the other"
                                             : " and to rank " + std::to_string(round.next_rank()));
}

/// Phases take turns, so that a few seeds in a row have all of them.
inline StormRound drawn(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto between = [&random](int low, int high) {
    return low + static_cast<int>(below(random, static_cast<unsigned>(high - low + 1)));
  };
  StormRound round;
  round.seed = seed;
  round.phase = static_cast<Phase>(seed % 7);
  const int size = between(2, 8);
  const int first = between(0, 1) == 0 ? size : between(1, size - 1);
  round.workers = first == size ? std::vector<int>{size} : std::vector<int>{first, size - first};
  round.shared = first == size && between(0, 3) != 0;
  round.max_restarts = round.restarts() ? 1 : between(0, 1);
  const int kind = between(0, 2);
  const bool joined = round.phase != Phase::start && round.phase != Phase::rendezvous;
  round.grandchild = kind == 0 ? "" : kind == 1 && joined ? "fork" : "exec";
  const int whom = between(0, 9);
  const bool any_grandchild = !round.grandchild.empty() && round.phase != Phase::start && round.phase != Phase::between;
  round.victim = whom < 5 ? Victim::worker : whom < 7 && any_grandchild ? Victim::grandchild : Victim::launcher;
  round.rank = between(0, size - 1);
  round.node = round.victim == Victim::launcher ? between(0, round.node_count() - 1) : round.node_of(round.rank);
  if (round.victim == Victim::launcher) {  // whose phase is watched
    round.rank = round.node == 0 ? between(0, first - 1) : between(first, size - 1);
  }
  round.first_rank = between(0, size - 1);
  const int how = between(0, 9);
  round.blow = how < 6                                       ? Blow::kill
               : how < 8 && round.victim == Victim::launcher ? Blow::terminate
                                                             : Blow::stop_and_kill;
  constexpr std::array<int, 7> longest_us{40000, 60000, 20000, 100000, 3000, 80000, 250000};
  round.stopped_us = between(0, 300000);
  round.straggle_ms = std::max(0, between(-60, 60));
  round.linger_ms = std::max(0, between(-10, 20));
  const bool leaving = round.phase == Phase::leaving;  // which lasts as long as all linger, and a moment
  round.delay_us =
      between(0, longest_us[static_cast<std::size_t>(round.phase)] + (leaving ? 2000 * round.linger_ms : 0));
  const bool has_another =
      round.victim == Victim::worker || (round.victim == Victim::launcher && round.node_count() == 2);
  round.twice = between(0, 2) == 0 && has_another && round.blow != Blow::stop_and_kill;
  return round;
}

}  // namespace support
