#pragma once
/// @file
/// Scope in which new threads take no signals.

#include <pthread.h>
#include <signal.h>

#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Blocks every signal in this thread for a scope. A thread started inside inherits that, so handlers and signalfds of
/// the program work as without it.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    static_cast<void>(::sigfillset(&all));
    const int error = ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    if (error != 0) {
      throw posix_error(error, "blocking signals to start a thread");
    }
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { static_cast<void>(::pthread_sigmask(SIG_SETMASK, &before_, nullptr)); }

 private:
  sigset_t before_{};
};

}  // namespace DTRAIN_NAMESPACE::async
