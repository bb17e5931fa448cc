#pragma once
/// @file
/// Signals of the launcher: read from a signalfd in the launcher's thread, whichever thread the system picks for them.

#include <pthread.h>
#include <sched.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Signals that the launcher forwards to the workers.
inline constexpr std::array<int, 8> forwarded_signals{SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                                      SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

namespace detail {

/// The thread of this process's SignalReader; 0 if there is none.
inline std::atomic<pid_t> signal_reader_thread{0};
/// Number of threads that run redirect_signal().
inline std::atomic<int> redirecting_threads{0};
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

/// Signal handler. Only a thread that does not block the signal runs it: one of a library (OpenBLAS, a profiler). It
/// sends the signal to the reader's thread, where it stays pending until the reader reads it.
inline void redirect_signal(int signal) noexcept {
  const int error = errno;
  redirecting_threads.fetch_add(1);
  if (const pid_t thread = signal_reader_thread.load(); thread != 0) {
    static_cast<void>(::syscall(SYS_tgkill, ::getpid(), thread, signal));
  }
  redirecting_threads.fetch_sub(1);
  errno = error;
}

}  // namespace detail

/// Reads signals from its construction to its destruction:
///  - the forwarded signals and SIGCHLD, which next() returns. A forwarded signal that the launcher inherited as
///    ignored (nohup, a background job of a script) stays ignored, and is not forwarded;
///  - SIGPIPE and SIGXFSZ are blocked, so that a closed reader and a file at its limit are write errors;
///  - SIGTTIN and SIGTTOU are blocked, so that relaying stdin and output does not stop a launcher in the background.
/// The signals are blocked in this thread only. Other threads, which libraries start before main, may not block them:
/// for a signal to the process the system then picks such a thread. It runs a handler, which sends a signal of the
/// first kind to this thread, and ignores the others.
/// Threads: one reader at a time; next() is called, and descriptor() is waited for, in the constructor's thread.
class SignalReader {
 public:
  SignalReader() {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int signal : forwarded_signals) {
      if (action_of(signal).sa_handler != SIG_IGN) {
        sigaddset(&wanted, signal);
      }
    }
    sigaddset(&wanted, SIGCHLD);
    sigset_t blocked = wanted;
    for (const int signal : ignored) {
      sigaddset(&blocked, signal);
    }
    descriptor_ = Descriptor(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!descriptor_) {
      throw_errno("creating a descriptor for signals (signalfd)");
    }
    const int error = ::pthread_sigmask(SIG_BLOCK, &blocked, &original_mask_);
    if (error != 0) {
      throw_posix(error, "blocking signals");
    }
    try {
      install_handlers(wanted);
    } catch (...) {
      stop();
      throw;
    }
  }
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;
  ~SignalReader() { stop(); }

  /// A signal that has arrived; nullopt if none has, or if the read failed. Blocking: no.
  std::optional<int> next() noexcept {
    signalfd_siginfo info{};
    ssize_t count = -1;
    do {
      count = ::read(descriptor_.get(), &info, sizeof info);
    } while (count < 0 && errno == EINTR);
    return count == static_cast<ssize_t>(sizeof info) ? std::optional<int>(static_cast<int>(info.ssi_signo))
                                                      : std::nullopt;
  }

  int descriptor() const noexcept { return descriptor_.get(); }

  /// The signal mask before construction, for child processes.
  const sigset_t& original_mask() const noexcept { return original_mask_; }

 private:
  static constexpr std::array<int, 4> ignored{SIGPIPE, SIGXFSZ, SIGTTIN, SIGTTOU};

  static struct sigaction action_of(int signal) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) != 0) {
      throw_errno("asking how a signal is handled");
    }
    return now;
  }

  /// Other threads' calls go on after a signal (SA_RESTART), except calls on the terminal in the background: the system
  /// would repeat such a call, and its signal, without a pause. exec resets handlers, so workers have none of them.
  /// SIGCHLD needs one even if it was inherited as ignored: the system would reap children, and tell nobody.
  void install_handlers(const sigset_t& wanted) {
    replaced_.reserve(forwarded_signals.size() + ignored.size() + 1);
    detail::signal_reader_thread.store(::gettid());
    struct sigaction redirected {};
    redirected.sa_handler = &detail::redirect_signal;
    redirected.sa_flags = SA_RESTART | SA_ONSTACK;
    sigfillset(&redirected.sa_mask);
    install(SIGCHLD, redirected);
    for (const int signal : forwarded_signals) {
      if (sigismember(&wanted, signal) == 1) {
        install(signal, redirected);
      }
    }
    struct sigaction without_effect = redirected;
    without_effect.sa_handler = [](int) {};
    for (const int signal : ignored) {
      if (action_of(signal).sa_handler == SIG_DFL) {
        const bool is_of_terminal = signal == SIGTTIN || signal == SIGTTOU;
        without_effect.sa_flags = SA_ONSTACK | (is_of_terminal ? 0 : SA_RESTART);
        install(signal, without_effect);
      }
    }
  }

  void install(int signal, const struct sigaction& action) {
    struct sigaction before {};
    if (::sigaction(signal, &action, &before) != 0) {
      throw_errno("setting how a signal is handled");
    }
    replaced_.emplace_back(signal, before);
  }

  /// Takes the signals that are pending for this thread or the process, so that they have no effect.
  void take_pending() noexcept {
    while (next()) {
    }
    const timespec at_once{};
    sigset_t without_effect;
    sigemptyset(&without_effect);
    for (const int signal : ignored) {
      sigaddset(&without_effect, signal);
    }
    while (::sigtimedwait(&without_effect, nullptr, &at_once) > 0) {
    }
  }

  /// Restores all handlers and the mask, after it has taken the signals that are pending for this thread.
  void stop() noexcept {
    take_pending();  // else another thread would meet a restored handler
    for (const auto& [signal, action] : replaced_) {
      static_cast<void>(::sigaction(signal, &action, nullptr));
    }
    detail::signal_reader_thread.store(0);
    while (detail::redirecting_threads.load() != 0) {  // another thread may be about to send a signal here
      static_cast<void>(::sched_yield());
    }
    take_pending();  // what other threads have sent meanwhile
    static_cast<void>(::pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr));
  }

  Descriptor descriptor_;
  std::vector<std::pair<int, struct sigaction>> replaced_;  ///< the handlers before construction
  sigset_t original_mask_{};
};

}  // namespace DTRAIN_NAMESPACE::launch
