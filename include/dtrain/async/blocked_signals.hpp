#pragma once
/// @file
/// BlockedSignals: scope in which new threads start with all signals blocked.

#include <pthread.h>
#include <signal.h>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Blocks every signal in this thread for a scope. A thread started in the scope inherits that, so that it does not
/// affect the program's handlers and signalfds.
class BlockedSignals {
 public:
  BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { static_cast<void>(::pthread_sigmask(SIG_SETMASK, &before_, nullptr)); }

 private:
  sigset_t before_{};
};

}  // namespace DTRAIN_NAMESPACE::async

#if DTRAIN_DEFINITIONS

#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::async {

DTRAIN_DEFINED BlockedSignals::BlockedSignals() {
  sigset_t all;
  static_cast<void>(::sigfillset(&all));
  const int error = ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  if (error != 0) {
    throw_posix(error, "blocking signals to start a thread");
  }
}

}  // namespace DTRAIN_NAMESPACE::async

#endif  // DTRAIN_DEFINITIONS
