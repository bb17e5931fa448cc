#pragma once
/// @file
/// Descriptor: a move-only owner of a file descriptor. net/, launch/ and ddp/ own their files by it.

#include <unistd.h>

#include <utility>

#include "dtrain/core/config.hpp"

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

}  // namespace DTRAIN_NAMESPACE
