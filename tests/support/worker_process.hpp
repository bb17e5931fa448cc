#pragma once
/// @file
/// process_of_worker(): a worker's process, from what tests/programs/elastic_training and
/// tests/libtorch/elastic_probe have printed.

#include <doctest/doctest.h>
#include <sys/types.h>

#include <cstddef>
#include <string>

namespace support {

/// The latest process in that worker's place. The test ends if the program has named none: a signal to 0 would reach
/// the test itself.
inline pid_t process_of_worker(const std::string& output, int worker) {
  const std::string mark = "worker " + std::to_string(worker) + " is process ";
  const std::size_t at = output.rfind(mark);
  REQUIRE_MESSAGE(at != std::string::npos, output);
  return static_cast<pid_t>(std::stol(output.substr(at + mark.size())));
}

}  // namespace support
