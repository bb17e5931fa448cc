#pragma once
/// @file
/// What this process writes to stderr.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

#include "dtrain/core/process/descriptor.hpp"

namespace support {

/// While it lives, stderr is a pipe. Threads: one at a time.
class CapturedStderr {
 public:
  CapturedStderr() : before_(::dup(STDERR_FILENO)) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
    reader_ = dtrain::Descriptor(ends[0]);
    const dtrain::Descriptor writer(ends[1]);
    REQUIRE(before_);
    REQUIRE(::dup2(writer.get(), STDERR_FILENO) == STDERR_FILENO);
  }
  CapturedStderr(const CapturedStderr&) = delete;
  CapturedStderr& operator=(const CapturedStderr&) = delete;
  ~CapturedStderr() { static_cast<void>(::dup2(before_.get(), STDERR_FILENO)); }

  /// All that was written so far. Blocking: no.
  const std::string& text() {
    std::array<char, 4096> part{};
    for (ssize_t count = 0; (count = ::read(reader_.get(), part.data(), part.size())) > 0;)
      text_.append(part.data(), static_cast<std::size_t>(count));
    return text_;
  }

 private:
  dtrain::Descriptor before_;
  dtrain::Descriptor reader_;
  std::string text_;
};

}  // namespace support
