#pragma once
/// @file
/// A scope in which a file that would grow beyond the process's limit is an error.

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <ctime>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// Keeps SIGXFSZ, which would end the process, from this thread: writing, or sizing a memory, beyond RLIMIT_FSIZE is
/// EFBIG. Allocates nothing.
class FileSizeErrors {
 public:
  FileSizeErrors() noexcept {
    sigset_t blocked;
    static_cast<void>(::sigemptyset(&blocked));
    static_cast<void>(::sigaddset(&blocked, SIGXFSZ));
    is_set_ = ::pthread_sigmask(SIG_BLOCK, &blocked, &before_) == 0 && ::sigismember(&before_, SIGXFSZ) == 0;
  }
  FileSizeErrors(const FileSizeErrors&) = delete;
  FileSizeErrors& operator=(const FileSizeErrors&) = delete;
  ~FileSizeErrors() {
    if (is_set_) {
      const int error = errno;  // of the call that is looked at next
      sigset_t taken;
      static_cast<void>(::sigemptyset(&taken));
      static_cast<void>(::sigaddset(&taken, SIGXFSZ));
      const timespec at_once{};
      while (::sigtimedwait(&taken, nullptr, &at_once) < 0 && errno == EINTR) {
      }
      static_cast<void>(::pthread_sigmask(SIG_SETMASK, &before_, nullptr));
      errno = error;
    }
  }

 private:
  sigset_t before_{};
  bool is_set_ = false;  ///< whoever blocked it before takes it
};

}  // namespace DTRAIN_NAMESPACE
