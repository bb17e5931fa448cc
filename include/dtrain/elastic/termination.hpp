#pragma once
/// @file
/// Termination of an ElasticWorker: after SIGTERM, the worker leaves an elastic job at its next call.

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <utility>

#include "dtrain/async/loop_handle.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"

namespace DTRAIN_NAMESPACE::elastic {

/// Handles SIGTERM while it lives, unless the program handles or ignores it, or another object handles it. (PID 1 of a
/// container ignores the signal without a handler.) A second SIGTERM ends the process at once, but not PID 1. So does
/// the first one after 5 s in which this object is not destroyed, PID 1 after 6 s. A signal that comes in the last 20
/// ms, or when the job finishes all the same, has no effect: a job that has finished returns its exit code. The
/// constructing thread unblocks SIGTERM for good, if the process has inherited that it is blocked, as from a Java
/// program; not if the program has blocked it, to wait for it elsewhere.
/// Threads: the program's one. A template, as DTRAIN_ON_USE explains.
template <class = void>
class Termination {
 public:
  /// A shell shows this code for a process that SIGTERM has ended.
  static constexpr int exit_code = 128 + SIGTERM;

  /// @param leave called once after the signal, on the loop's thread. It must not block.
  Termination(async::LoopHandle& loop, std::function<void()> leave) {
    pid_t nobody = 0;
    if (action().sa_handler != SIG_DFL || !handling_process.compare_exchange_strong(nobody, ::getpid())) return;
    has_come = false;
    struct sigaction noting {};
    noting.sa_handler = &note;
    noting.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART | SA_ONSTACK;
    sigfillset(&noting.sa_mask);
    static_cast<void>(::sigaction(SIGTERM, &noting, nullptr));
    if (has_inherited_block) {
      const sigset_t blocked = only_sigterm();
      static_cast<void>(::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr));
    }
    watching_.emplace(loop.spawn([leave = std::move(leave)](async::EventLoop& of) { return watch(of, leave); }));
  }
  Termination(const Termination&) = delete;
  Termination& operator=(const Termination&) = delete;
  ~Termination() {
    if (!watching_) return;
    if (action().sa_handler == &note) set_default();
    watching_.reset();
    handling_process = 0;
  }

  bool has_been_requested() const noexcept { return watching_ && has_come; }

  /// Ends the process by SIGTERM, as a process without a handler, once. PID 1 goes on: @returns then the exit code
  static int end_process() {
    set_default();
    static_cast<void>(std::raise(SIGTERM));
    return exit_code;
  }

 private:
  static struct sigaction action() {
    struct sigaction now {};
    static_cast<void>(::sigaction(SIGTERM, nullptr, &now));
    return now;
  }
  static void set_default() { static_cast<void>(std::signal(SIGTERM, SIG_DFL)); }

  static sigset_t only_sigterm() noexcept {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    return set;
  }
  static bool is_blocked() noexcept {
    sigset_t mask;
    return ::pthread_sigmask(SIG_BLOCK, nullptr, &mask) == 0 && sigismember(&mask, SIGTERM) == 1;
  }

  /// Signal handler, which the system has replaced by the default. A process that the program forked ends.
  static void note(int) noexcept {
    has_come = true;
    if (::getpid() != handling_process) static_cast<void>(std::raise(SIGTERM));
  }

  static async::Task<void> watch(async::EventLoop& loop, std::function<void()> leave) {
    while (!has_come) {
      co_await loop.sleep_for(std::chrono::milliseconds(20));
    }
    leave();
    co_await loop.sleep_for(std::chrono::seconds(5));
    log(LogLevel::error,
        "this worker got SIGTERM and has not left its job in 5 s: it was in no call of dtrain that it could leave");
    static_cast<void>(::kill(::getpid(), SIGTERM));
    co_await loop.sleep_for(std::chrono::seconds(1));
    ::_exit(exit_code);  // PID 1
  }

  static inline const bool has_inherited_block = is_blocked();  ///< set before main
  static inline std::atomic<bool> has_come{false};
  static inline std::atomic<pid_t> handling_process{0};
  static_assert(std::atomic<pid_t>::is_always_lock_free);
  std::optional<async::BackgroundTask<void>> watching_;  ///< empty: this object does not handle the signal
};

}  // namespace DTRAIN_NAMESPACE::elastic
