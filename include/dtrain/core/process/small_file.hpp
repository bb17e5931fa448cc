#pragma once
/// @file
/// read_small_file: the first bytes of a small file, such as those of /proc and /sys that cgroups and reports need.

#include <cstddef>
#include <optional>
#include <string>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE {

/// A regular file's first bytes, at most `most`; nullopt if the file is not regular or cannot be read.
std::optional<std::string> read_small_file(const std::string& path, std::size_t most);

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "dtrain/core/process/descriptor.hpp"

namespace DTRAIN_NAMESPACE {

DTRAIN_DEFINED std::optional<std::string> read_small_file(const std::string& path, std::size_t most) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct ::stat facts {};
  if (!file || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return std::nullopt;
  }
  std::string bytes(most, '\0');
  std::size_t filled = 0;
  while (filled < most) {
    const ssize_t count = ::read(file.get(), bytes.data() + filled, most - filled);
    if (count < 0 && errno != EINTR) {
      return std::nullopt;  // for example the speed of an interface that is down
    }
    if (count == 0) {
      break;
    }
    filled += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  bytes.resize(filled);
  return bytes;
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
