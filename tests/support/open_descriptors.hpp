#pragma once
/// @file
/// open_descriptors(), for tests that look for descriptors that are left behind.

#include <dirent.h>
#include <doctest/doctest.h>

#include <cstddef>

#include "dtrain/core/wait_pace.hpp"

namespace support {

/// How many descriptors this process has open, two more with "." and "..", and that of the listing. The one
/// that HostLoad keeps until the process ends is among them, whether or not a wait has needed it so far.
inline std::size_t open_descriptors() {
  dtrain::HostLoad::instance();
  DIR* directory = ::opendir("/proc/self/fd");
  REQUIRE(directory != nullptr);
  std::size_t count = 0;
  while (::readdir(directory) != nullptr)
    ++count;
  ::closedir(directory);
  return count;
}

}  // namespace support
