#pragma once
/// @file
/// A folder of a test's own.

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>

namespace support {

/// Removed at the end with all that is in it.
struct TemporaryDirectory {
  TemporaryDirectory() {
    char name[] = "/tmp/dtrain-test-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;  // what is left behind fails no test
    std::filesystem::remove_all(path, ignored);
  }

  /// How many entries it has.
  std::size_t files() const {
    const std::filesystem::directory_iterator first(path);
    return static_cast<std::size_t>(std::distance(first, std::filesystem::directory_iterator()));
  }

  std::string path;
};

/// A test case's fixture: a folder of its own, and the path of a file there that does not exist yet.
struct TemporaryFile {
  const TemporaryDirectory folder;
  const std::string path = folder.path + "/file";
};

}  // namespace support
