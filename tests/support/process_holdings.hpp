#pragma once
/// @file
/// ProcessHoldings: what this process has of the system.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/sanitized.hpp"

/// Of the sanitizers' runtimes, whose header g++ does not have.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();

namespace support {

/// As it is when the object is made.
struct ProcessHoldings {
  static std::ptrdiff_t entries(const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  }

  std::ptrdiff_t descriptors = entries("/proc/self/fd");
  std::ptrdiff_t threads = entries("/proc/self/task");
  std::ptrdiff_t mappings = [] {
    std::ifstream file("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  }();
  /// Resident; under a sanitizer, which keeps much of what is freed, only what is allocated.
  std::int64_t memory_bytes = [] {
    if constexpr (is_sanitized) {
      return static_cast<std::int64_t>(__sanitizer_get_current_allocated_bytes());
    }
    std::ifstream file("/proc/self/statm");
    std::int64_t all = 0;
    std::int64_t resident = 0;
    file >> all >> resident;
    return resident * ::sysconf(_SC_PAGESIZE);
  }();
};

}  // namespace support
