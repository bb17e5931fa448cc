#pragma once
/// @file
/// SystemFiles: reader of the files below /proc, /sys and /etc, or below a root that a test chooses.

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/process/descriptor.hpp"

namespace DTRAIN_NAMESPACE {

/// A regular file's first bytes, at most `most`; nullopt if the file is not regular or cannot be read.
std::optional<std::string> read_small_file(const std::string& path, std::size_t most);

/// The path that a symbolic link has, at most 4096 bytes of it; empty if it cannot be read.
std::string link_target(const std::string& path);

/// Reads files; a file that cannot be read counts as missing. Paths begin with '/', and are relative to the root.
class SystemFiles {
 public:
  static constexpr std::size_t most_bytes = std::size_t{64} << 10;
  static constexpr std::size_t most_names = 1024;

  /// @param root a folder that has the files of this machine or of another one: /sys, /proc, /etc, /opt
  DTRAIN_NOT_INLINED explicit SystemFiles(std::string root = "/") : root_(std::move(root)) {
    while (!root_.empty() && root_.back() == '/') {
      root_.pop_back();
    }
  }

  /// A regular file's first bytes, at most `most`; nullopt if the file is not regular or cannot be read.
  DTRAIN_NOT_INLINED std::optional<std::string> text(const std::string& path, std::size_t most = most_bytes) const {
    return read_small_file(root_ + path, most);
  }

  /// A file's first line without the spaces at its end.
  DTRAIN_NOT_INLINED std::optional<std::string> line(const std::string& path) const {
    std::optional<std::string> all = text(path);
    if (all) {
      all->resize(std::min(all->find('\n'), all->size()));
      all->resize(all->find_last_not_of(" \t\r") + 1);
    }
    return all;
  }

  /// Names in a folder, sorted; at most `most_names`.
  DTRAIN_NOT_INLINED std::vector<std::string> names(const std::string& path) const {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir((root_ + path).c_str()), &::closedir);
    std::vector<std::string> found;
    const dirent* entry = nullptr;
    while (folder && found.size() < most_names && (entry = ::readdir(folder.get())) != nullptr) {
      const std::string_view name = static_cast<const char*>(entry->d_name);
      if (name != "." && name != "..") {
        found.emplace(std::upper_bound(found.begin(), found.end(), name), name);
      }
    }
    return found;
  }

 private:
  std::string root_;
};

#if DTRAIN_DEFINITIONS

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
      return std::nullopt;  // the speed of an interface that is down, for example
    }
    if (count == 0) {
      break;
    }
    filled += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  bytes.resize(filled);
  return bytes;
}

DTRAIN_DEFINED std::string link_target(const std::string& path) {
  std::string target(4096, '\0');
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  target.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
  return target;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE
