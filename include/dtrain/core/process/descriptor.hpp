#pragma once
/// @file
/// Descriptor: a move-only owner of a file descriptor. wait_descriptor(): a blocking wait for one, with a deadline.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

/// Closes its descriptor when destroyed. Code that opens one passes a close-on-exec flag to the system call, so that
/// processes started by the program do not keep it open.
/// Lifetime: no coroutine waits for the descriptor (EventLoop::readable) while it is closed.
class Descriptor {
 public:
  Descriptor() noexcept = default;

  /// Takes over `fd`; with a negative one it owns nothing.
  explicit Descriptor(int fd) noexcept : fd_(fd < 0 ? -1 : fd) {}

  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = other.release();
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

  /// Passes the descriptor to the caller, which closes it.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

  /// Closes it now. EINTR is not retried: on Linux the descriptor is gone all the same.
  DTRAIN_NOT_INLINED void reset() noexcept {
    if (fd_ >= 0) {
      static_cast<void>(::close(std::exchange(fd_, -1)));
    }
  }

 private:
  int fd_ = -1;
};

/// Returns on `events` (POLLIN, POLLOUT), an error or the peer's close. With a past deadline it checks once.
/// Blocking: until the deadline.
/// @param doing begins the error message
/// @throws Error (timeout, posix)
inline void wait_descriptor(int descriptor, short events, Deadline deadline, const std::string& doing) {
  for (;;) {
    const bool last = deadline.passed();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    pollfd entry{descriptor, events, 0};
    const int count = ::poll(&entry, 1, static_cast<int>(std::min(left, std::chrono::milliseconds(60'000)).count()));
    if (count > 0) {
      return;
    }
    if (count < 0 && errno != EINTR) {
      throw_errno(doing);
    }
    if (last) {
      throw_error(Errc::timeout, "{}: the deadline passed", {doing});
    }
  }
}

/// Sleeps a millisecond. @throws Error (timeout) if the deadline has passed, (posix)
inline void pause_before_retry(Deadline deadline, const std::string& doing) {
  if (deadline.passed()) {
    throw_error(Errc::timeout, "{}: the deadline passed", {doing});
  }
  if (::poll(nullptr, 0, 1) < 0 && errno != EINTR) {
    throw_errno(doing);
  }
}

}  // namespace DTRAIN_NAMESPACE
