#pragma once
/// @file
/// Threads of the library: start_thread() starts one with all signals blocked (BlockedSignals) and an error that names
/// it; JoiningThread is a std::thread that its destructor joins.

#include <pthread.h>
#include <signal.h>

#include <functional>
#include <string_view>
#include <thread>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"

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

/// std::jthread without a stop token: libc++ has std::jthread since version 18, and only as an experimental part before
/// version 20. Destruction and assignment to it block until the thread has ended; the owner makes the thread end.
class JoiningThread {
 public:
  JoiningThread() noexcept = default;
  explicit JoiningThread(std::thread thread) noexcept : thread_(std::move(thread)) {}
  JoiningThread(JoiningThread&&) noexcept = default;
  JoiningThread& operator=(JoiningThread&& other) noexcept {
    std::thread next = std::move(other.thread_);
    join();
    thread_ = std::move(next);
    return *this;
  }
  ~JoiningThread() { join(); }

  /// Ends the ownership: the thread runs on by itself.
  void detach() { thread_.detach(); }

  /// Blocking: until the thread has ended. Does nothing if there is none.
  void join() noexcept {
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  std::thread thread_;
};

/// Runs `main()` on a new thread with all signals blocked, so that the program's handlers run in the program's threads.
/// @param what names the thread in the error: "a channel's thread"
/// @throws Error (posix) if the system cannot start a thread
JoiningThread start_thread(std::string_view what, std::function<void()> main);

}  // namespace DTRAIN_NAMESPACE::async

#if DTRAIN_DEFINITIONS

#include <cerrno>
#include <system_error>

#include "dtrain/core/error.hpp"
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

DTRAIN_DEFINED JoiningThread start_thread(std::string_view what, std::function<void()> main) {
  const BlockedSignals blocked;
  try {
    return JoiningThread(std::thread(std::move(main)));
  } catch (const std::system_error& failure) {
    throw Error(failure.code(), format_text("starting {}: {}{}", {what, failure.what(), limit_hint(ENOMEM)}));
  }
}

}  // namespace DTRAIN_NAMESPACE::async

#endif  // DTRAIN_DEFINITIONS
