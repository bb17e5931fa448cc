#pragma once
/// @file
/// What a job has of the system, and what of it is still there afterwards: processes, memory without a name, sockets.

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "support/launch_probe.hpp"

namespace support {

/// A process's variables, each with a 0 before and after it; empty for a zombie and for none.
inline std::string environment_of(pid_t process) {
  return std::string(1, '\0') + content("/proc/" + std::to_string(process) + "/environ");
}

inline bool has_variable(const std::string& environment, const std::string& assignment) {
  return contains(environment, std::string(1, '\0') + assignment + std::string(1, '\0'));
}

/// What the kernel calls it: the program, or what it has named itself.
inline std::string name_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

inline pid_t parent_of(pid_t process) {
  const std::string status = content("/proc/" + std::to_string(process) + "/status");
  const std::size_t place = status.find("PPid:");
  return place == std::string::npos ? 0 : std::atoi(status.c_str() + place + 5);
}

inline std::vector<pid_t> all_processes() {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const int process = std::atoi(entry.path().filename().c_str());
    if (process > 0) {
      found.push_back(process);
    }
  }
  return found;
}

/// Also what they have started, whatever it made of its command line: variables are inherited. Zombies are left out.
inline std::vector<pid_t> processes_with_variable(const std::string& assignment) {
  std::vector<pid_t> found;
  for (const pid_t process : all_processes()) {
    if (has_variable(environment_of(process), assignment)) {
      found.push_back(process);
    }
  }
  return found;
}

/// Where a process's descriptors lead to: "socket:[123]", "/memfd:dtrain (deleted)".
inline std::vector<std::string> descriptors_of(pid_t process) {
  std::vector<std::string> targets;
  std::error_code gone;  // the process may be
  std::filesystem::directory_iterator entries("/proc/" + std::to_string(process) + "/fd", gone);
  for (; !gone && entries != std::filesystem::directory_iterator(); entries.increment(gone)) {
    std::error_code closed;
    targets.push_back(std::filesystem::read_symlink(entries->path(), closed).string());
  }
  return targets;
}

/// The inodes of memory without a name (memfd_create) that a process has mapped.
inline std::set<std::string> mapped_memory_of(pid_t process) {
  std::set<std::string> inodes;
  std::istringstream maps(content("/proc/" + std::to_string(process) + "/maps"));
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string range, permissions, offset, device, inode, path;
    if (fields >> range >> permissions >> offset >> device >> inode >> path && path.rfind("/memfd:", 0) == 0) {
      inodes.insert(device + " " + inode);
    }
  }
  return inodes;
}

/// Sockets and memory, by inode.
struct Holdings {
  std::set<std::string> memory;
  std::set<std::string> sockets;  ///< "socket:[123]"

  void add(pid_t process) {
    memory.merge(mapped_memory_of(process));
    for (const std::string& target : descriptors_of(process)) {
      if (target.rfind("socket:", 0) == 0) {
        sockets.insert(target);
      }
    }
  }
};

/// What of `before` any process of this machine still holds, in words; empty for nothing.
inline std::string still_held(const Holdings& before) {
  std::string found;
  for (const pid_t process : all_processes()) {
    Holdings now;
    now.add(process);
    for (const std::string& inode : now.memory)
      found += before.memory.count(inode) != 0 ? "memory " + inode + " in " + name_of(process) + "; " : "";
    for (const std::string& socket : now.sockets)
      found += before.sockets.count(socket) != 0 ? socket + " in " + name_of(process) + "; " : "";
  }
  std::istringstream table(content("/proc/net/unix"));  // also those that only the kernel still knows
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    const std::vector<std::string> columns{std::istream_iterator<std::string>(fields), {}};
    if (columns.size() > 6 && before.sockets.count("socket:[" + columns[6] + "]") != 0) {
      found += "a Unix socket: " + line + "; ";
    }
  }
  return found;
}

/// The TCP sockets at or to a port of this machine but for those in TIME_WAIT, which nobody has any more.
inline std::string sockets_at(int port) {
  constexpr const char* time_wait = "06";
  std::string found;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream table(content(path));
    std::string line;
    std::getline(table, line);
    while (std::getline(table, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state;
      fields >> number >> local >> remote >> state;
      const auto is_ours = [port](const std::string& end) {
        const std::size_t colon = end.rfind(':');
        return colon != std::string::npos && std::strtol(end.c_str() + colon + 1, nullptr, 16) == port;
      };
      if (state != time_wait && (is_ours(local) || is_ours(remote))) {
        found += line + "\n";
      }
    }
  }
  return found;
}

}  // namespace support
