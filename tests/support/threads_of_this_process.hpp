#pragma once
/// @file
/// The number of threads of this process.

#include <fstream>
#include <string>

namespace support {

inline int threads_of_this_process() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "Threads:") {
      int count = 0;
      status >> count;
      return count;
    }
  }
  return 0;
}

}  // namespace support
