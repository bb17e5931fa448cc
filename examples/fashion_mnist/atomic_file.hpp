#pragma once
/// @file
/// Writes a file so that nobody ever sees half of it.

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>

#include "dtrain/core/error.hpp"

namespace fashion_mnist {

/// `path` gets `bytes`: written under another name in the same folder and renamed. Blocking: the file system.
/// @throws dtrain::Error (the system's code) naming the file; then what was at `path` is unchanged.
inline void write_file_atomically(const std::string& path, std::span<const std::byte> bytes) {
  std::string temporary = path + ".XXXXXX";
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
  int failure = descriptor < 0 ? errno : 0;
  for (std::size_t done = 0; failure == 0 && done < bytes.size();) {
    const ssize_t written = ::write(descriptor, bytes.data() + done, bytes.size() - done);
    if (written >= 0) {
      done += static_cast<std::size_t>(written);
    } else if (errno != EINTR) {
      failure = errno;
    }
  }
  // mkostemp makes a file for its owner only; a result is for everyone who may read the folder.
  if (failure == 0 && ::fchmod(descriptor, 0644) != 0) failure = errno;
  if (descriptor >= 0 && ::close(descriptor) != 0 && failure == 0 && errno != EINTR) failure = errno;
  if (failure == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) failure = errno;
  if (failure != 0) {
    if (descriptor >= 0) ::unlink(temporary.c_str());
    throw dtrain::posix_error(failure, "writing the file " + path + " failed",
                              "name a file in a folder that can be written");
  }
}

}  // namespace fashion_mnist
