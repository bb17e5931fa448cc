#pragma once
/// @file
/// SignalForwarder of a NodeLauncher: sends the launcher's signals to its workers. SignalReader: reads them from a
/// signalfd.

#include <pthread.h>
#include <sched.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/async/events.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/exit_status.hpp"
#include "dtrain/launch/supervise/workers.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

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

  /// The signal mask before construction, without the forwarded signals. The launcher inherits a mask that blocks these
  /// from a program that takes its own signals in one thread (Java, .NET); a worker with it would not end at SIGTERM.
  sigset_t mask_for_workers() const noexcept {
    sigset_t mask = original_mask_;
    for (const int signal : forwarded_signals) {
      sigdelset(&mask, signal);
    }
    return mask;
  }

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
  /// would repeat such a call, and its signal, without a pause. exec resets handlers, so workers do not inherit them.
  /// SIGCHLD needs a handler even if it was inherited as ignored: otherwise the system would reap children without a
  /// signal.
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
    take_pending();  // otherwise another thread would run a restored handler
    for (const auto& [signal, action] : replaced_) {
      static_cast<void>(::sigaction(signal, &action, nullptr));
    }
    detail::signal_reader_thread.store(0);
    while (detail::redirecting_threads.load() != 0) {  // another thread may be about to send a signal here
      static_cast<void>(::sched_yield());
    }
    take_pending();  // signals that other threads have sent meanwhile
    static_cast<void>(::pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr));
  }

  Descriptor descriptor_;
  std::vector<std::pair<int, struct sigaction>> replaced_;  ///< the handlers before construction
  sigset_t original_mask_{};
};

/// Reads signals from its construction to its destruction, also between attempts.
/// Lifetime: the constructor's arguments outlive it. Threads: the loop's.
class SignalForwarder {
 public:
  /// @param changed the forwarder sets it at every signal, SIGCHLD included
  SignalForwarder(async::EventLoop& loop, SignalReader& signals, async::AutoResetEvent& changed)
      : loop_(&loop), signals_(&signals), changed_(&changed), reading_(loop.spawn(read_all())) {}
  SignalForwarder(const SignalForwarder&) = delete;
  SignalForwarder& operator=(const SignalForwarder&) = delete;

  /// Forwards signals to these workers from now on; null: there are none. Lifetime: `workers` lives until the next
  /// call. @param spares whether SIGUSR1 and SIGUSR2 are kept from workers that they would end; else these end the job
  void forward_to(const Workers* workers, bool spares = false) noexcept {
    workers_ = workers;
    spares_ = spares;
  }

  /// The handler is called for each stop request to this process. `count`: how many have arrived. Stop requests are
  /// SIGINT and SIGTERM and, while there are no workers, SIGHUP and SIGQUIT. Workers may handle these two and go on.
  void on_stop(std::function<void(int signal, int count)> handler) { on_stop_ = std::move(handler); }

  /// The launcher of another node received its `count`-th stop request. If this launcher has received as many, it is
  /// the same request: a batch system may signal all launchers at once.
  void on_remote_stop(int signal, int count) {
    remote_stops_ = std::max(remote_stops_, count);
    if (count > local_stops_) {
      note_stop(signal);
      forward(signal);
      changed_->set();
    }
  }

  /// The signal of the first stop request; 0 if none has arrived.
  int stop_signal() const noexcept { return stop_signal_; }

  /// Number of stop requests at the launcher of the job that received most of them.
  int stop_requests() const noexcept { return std::max(local_stops_, remote_stops_); }

  /// The first signal that requested the job's end: SIGINT, SIGTERM, SIGHUP or SIGQUIT, or SIGUSR1 or SIGUSR2 that ends
  /// a worker. 0 if none has arrived.
  int interrupt_signal() const noexcept { return interrupt_signal_; }
  bool interrupted() const noexcept { return interrupt_signal_ != 0; }

 private:
  async::Task<void> read_all() {
    for (;;) {
      co_await loop_->readable(signals_->descriptor(), Deadline::unbounded("the task is destroyed with the launcher"));
      while (const std::optional<int> signal = signals_->next()) {
        if (*signal != SIGCHLD) {
          take(*signal);
        }
      }
      changed_->set();
    }
  }

  void take(int signal) {
    forward(signal);
    const bool is_for_workers = signal == SIGHUP || signal == SIGQUIT;
    if (is_for_workers) {
      note_interrupt(signal);
    }
    if (signal == SIGTERM || signal == SIGINT || (is_for_workers && workers_ == nullptr)) {
      note_stop(signal);
      ++local_stops_;
      if (on_stop_) {
        on_stop_(signal, local_stops_);
      }
    }
    if (signal == SIGTSTP) {
      static_cast<void>(::kill(::getpid(), SIGSTOP));  // SIGTSTP is blocked here, but the shell expects a stopped job
    }
  }

  void note_stop(int signal) noexcept {
    stop_signal_ = stop_signal_ == 0 ? signal : stop_signal_;
    note_interrupt(signal);
  }

  void note_interrupt(int signal) noexcept { interrupt_signal_ = interrupt_signal_ == 0 ? signal : interrupt_signal_; }

  /// Signals that a terminal sends to a group go to each worker's group. SIGTERM, SIGUSR1 and SIGUSR2 go to the worker
  /// only, which may pass them on.
  void forward(int signal) {
    if (workers_ == nullptr) {
      return;
    }
    if (signal == SIGTERM) {
      workers_->signal_each(signal);
    } else if (signal == SIGUSR1 || signal == SIGUSR2) {
      const std::vector<int> unready = workers_->signal_handlers(signal, spares_);
      if (unready.empty()) return;
      if (!spares_) return note_interrupt(signal);
      log(LogLevel::warning,
          format_text(
              "{} came to the launcher, and is not forwarded to {}, where the program has no handler for it: it "
              "would end them",
              {signal_name(signal), rendezvous::rank_list(unready, 16, "worker")}));
    } else {
      workers_->signal_groups(signal);
    }
  }

  async::EventLoop* loop_;
  SignalReader* signals_;
  async::AutoResetEvent* changed_;
  const Workers* workers_ = nullptr;
  bool spares_ = false;
  std::function<void(int, int)> on_stop_;
  int stop_signal_ = 0;
  int local_stops_ = 0;
  int remote_stops_ = 0;  ///< stop requests at the launcher of another node that received most of them
  int interrupt_signal_ = 0;
  async::TaskHandle reading_;
};

}  // namespace DTRAIN_NAMESPACE::launch
