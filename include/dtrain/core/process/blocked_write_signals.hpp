#pragma once
/// @file
/// BlockedWriteSignals: a scope in which a failed write gives an error, not SIGPIPE or SIGXFSZ.

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <ctime>
#include <initializer_list>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// Blocks SIGPIPE and SIGXFSZ in this thread, which would end the process. Writing to a pipe without a reader then
/// gives EPIPE; writing, or sizing a memory file, beyond RLIMIT_FSIZE gives EFBIG. Allocates nothing.
class BlockedWriteSignals {
 public:
  BlockedWriteSignals() noexcept {
    sigset_t pending;
    static_cast<void>(::sigemptyset(&pending));
    static_cast<void>(::sigpending(&pending));
    static_cast<void>(::sigemptyset(&added_));
    for (const int signal : {SIGPIPE, SIGXFSZ}) {
      if (::sigismember(&pending, signal) == 0) {  // a pending one belongs to the thread that blocked it before
        static_cast<void>(::sigaddset(&added_, signal));
      }
    }
    is_set_ = ::pthread_sigmask(SIG_BLOCK, &added_, &before_) == 0;
  }
  BlockedWriteSignals(const BlockedWriteSignals&) = delete;
  BlockedWriteSignals& operator=(const BlockedWriteSignals&) = delete;
  ~BlockedWriteSignals() {
    if (is_set_) {
      const int error = errno;  // errno of the call that the caller checks next
      const timespec at_once{};
      while (::sigtimedwait(&added_, nullptr, &at_once) > 0 || errno == EINTR) {
      }
      static_cast<void>(::pthread_sigmask(SIG_SETMASK, &before_, nullptr));
      errno = error;
    }
  }

 private:
  sigset_t added_{};
  sigset_t before_{};
  bool is_set_ = false;
};

}  // namespace DTRAIN_NAMESPACE
