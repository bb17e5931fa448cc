#pragma once
// What tests of the launcher share: the probe program, marks that find its processes, text and /proc.

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "support/contains.hpp"
#include "support/program.hpp"

namespace support {

inline const std::string probe = DTRAIN_TEST_PROGRAMS_DIR "/launch_probe";

/// The slack of a bound in time: none of a test's business but a promise of the launcher's is asserted.
inline constexpr std::chrono::milliseconds two_seconds{is_sanitized ? 8000 : 2000};

/// On every command line of a test's processes, so that they can be found.
inline std::string new_mark() {
  static int count = 0;
  return "mark-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

/// Ranks 0 to `ranks` - 1 have printed "up".
inline void require_up(Program& program, int ranks) {
  for (int rank = 0; rank < ranks; ++rank)
    REQUIRE(program.wait_for("[" + std::to_string(rank) + "] up"));
}

inline unsigned below(std::mt19937& random, unsigned bound) {
  return static_cast<unsigned>(random() % bound);
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    lines.push_back(line);
  return lines;
}

/// What can be read of it: a process's file under /proc stops to be readable when the process ends.
inline std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// How many processes that have ended wait for `parent` to reap them.
inline int zombies_of(pid_t parent) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string status = content(entry.path().string() + "/status");
    count += contains(status, "State:\tZ") && contains(status, "PPid:\t" + std::to_string(parent) + "\n") ? 1 : 0;
  }
  return count;
}

/// R (running), S (sleeping), T (stopped), ...; 0 for no such process.
inline char state_of(pid_t process) {
  const std::string stat = content("/proc/" + std::to_string(process) + "/stat");
  const std::size_t end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ? '\0' : stat[end + 2];
}

inline bool reaches_state(pid_t process, const std::string& states) {
  const dtrain::Deadline deadline = soon();
  while (states.find(state_of(process)) == std::string::npos && !deadline.passed())
    ::usleep(2000);
  return states.find(state_of(process)) != std::string::npos;
}

}  // namespace support
