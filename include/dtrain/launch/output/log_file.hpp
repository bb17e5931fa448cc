#pragma once
/// @file
/// Log file: the file in --log-dir for one stream of one worker.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Creates a directory and its parents. @throws Error (posix)
inline void make_directories(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    struct ::stat status {};
    const bool there = ::mkdir(part.c_str(), 0777) == 0 ||
                       (errno == EEXIST && ::stat(part.c_str(), &status) == 0 && S_ISDIR(status.st_mode));
    if (!there) {
      throw_errno("making the directory {} for --log-dir", {part}, "give a directory that can be written");
    }
    if (end == std::string::npos) {
      return;
    }
  }
}

/// Has the bytes as the worker wrote them, without prefixes. An existing file is truncated when it is opened.
class LogFile {
 public:
  /// Writes no file.
  LogFile() noexcept = default;

  /// @param on_lost called once, at the first write error: "writing d/rank-0.stdout: No space ..."
  /// Blocking: no. @throws Error (posix), also if `path` is a pipe that no process reads
  explicit LogFile(const std::string& path, std::function<void(const std::string& what)> on_lost = {})
      : path_(path),
        on_lost_(std::move(on_lost)),
        file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666)) {
    if (!file_) {
      throw_errno("opening {} for --log-dir", {path}, "give a directory that can be written");
    }
  }

  /// Appends. @returns false at the first write error; after it the file is closed, and further bytes are dropped
  bool write(std::string_view bytes) {
    while (file_ && !bytes.empty()) {
      const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
      if (count >= 0) {
        bytes.remove_prefix(static_cast<std::size_t>(count));
      } else if (errno != EINTR) {
        const std::string reason = std::generic_category().message(errno);
        file_.reset();
        if (on_lost_) {
          on_lost_(format_text("writing {}: {}", {path_, reason}));
        }
        return false;
      }
    }
    return true;
  }

 private:
  std::string path_;
  std::function<void(const std::string&)> on_lost_;
  Descriptor file_;
};

}  // namespace DTRAIN_NAMESPACE::launch
