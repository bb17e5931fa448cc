#pragma once
/// @file
/// Signals of the launcher: blocked in the process and read from a signalfd.

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <optional>

#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Signals that the launcher forwards to the workers.
inline constexpr std::array<int, 8> forwarded_signals{SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                                      SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

/// Blocks signals in this thread from its construction to its destruction:
///  - the forwarded signals and SIGCHLD, which next() returns. A forwarded signal that the launcher inherited as
///    ignored (nohup, a background job of a script) stays ignored, and is not forwarded;
///  - SIGPIPE and SIGXFSZ, so that a closed reader and a file at its limit are write errors;
///  - SIGTTIN and SIGTTOU, so that relaying stdin and output does not stop a launcher in the background.
/// Threads: for a process with one thread.
class SignalReader {
 public:
  SignalReader() {
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    for (const int signal : forwarded_signals) {
      struct sigaction now {};
      if (::sigaction(signal, nullptr, &now) != 0) {
        throw_errno("asking how a signal is handled");
      }
      if (now.sa_handler != SIG_IGN) {
        sigaddset(&wanted, signal);
      }
    }
    // If SIGCHLD were inherited as ignored, the launcher would receive no signal for a child's end.
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    if (::sigaction(SIGCHLD, &standard, nullptr) != 0) {
      throw_errno("setting how SIGCHLD is handled");
    }
    sigset_t blocked = wanted;
    for (const int signal : {SIGPIPE, SIGXFSZ, SIGTTIN, SIGTTOU}) {
      sigaddset(&blocked, signal);
    }
    descriptor_ = Descriptor(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!descriptor_) {
      throw_errno("creating a descriptor for signals");
    }
    const int error = ::pthread_sigmask(SIG_BLOCK, &blocked, &original_mask_);
    if (error != 0) {
      throw_posix(error, "blocking signals");
    }
  }
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;
  ~SignalReader() {
    while (next()) {  // a pending signal must not reach the process when the mask is restored
    }
    const timespec at_once{};
    sigset_t of_writes;
    sigemptyset(&of_writes);
    sigaddset(&of_writes, SIGPIPE);
    sigaddset(&of_writes, SIGXFSZ);
    while (::sigtimedwait(&of_writes, nullptr, &at_once) > 0) {
    }
    static_cast<void>(::pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr));
  }

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
  Descriptor descriptor_;
  sigset_t original_mask_{};
};

}  // namespace DTRAIN_NAMESPACE::launch
