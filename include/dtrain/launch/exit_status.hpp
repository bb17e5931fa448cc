#pragma once
/// @file
/// ExitStatus: exit code or signal of an ended worker, as number and text.

#include <sys/wait.h>

#include <csignal>
#include <string>
#include <utility>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// "SIGKILL"; "signal 42" for those without a common name.
inline std::string signal_name(int signal) {
  constexpr std::pair<int, const char*> names[] = {
      {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},   {SIGTRAP, "SIGTRAP"},
      {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"},
      {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"}, {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},
      {SIGSTOP, "SIGSTOP"}, {SIGTSTP, "SIGTSTP"}, {SIGTTIN, "SIGTTIN"}, {SIGTTOU, "SIGTTOU"}, {SIGXCPU, "SIGXCPU"},
      {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"}};
  for (const auto& [number, name] : names) {
    if (number == signal) return name;
  }
  return format_text("signal {}", {signal});
}

/// For a signal that the system sends when a process exceeds a limit, text that names the limit; else empty.
inline const char* limit_behind_signal(int signal) {
  switch (signal) {
    case SIGXCPU: return ": the limit of processor time, ulimit -t";
    case SIGXFSZ: return ": the limit of file sizes, ulimit -f";
    default: return "";
  }
}

/// An exit code, or a signal if `signal` is not 0.
struct ExitStatus {
  int code = 0;
  int signal = 0;

  static ExitStatus of(const siginfo_t& info) noexcept {
    return info.si_code == CLD_EXITED ? ExitStatus{info.si_status, 0} : ExitStatus{0, info.si_status};
  }

  /// For a signal the number that a shell uses: 128 + signal.
  int exit_code() const noexcept { return signal != 0 ? 128 + signal : code; }

  std::string text() const {
    return signal != 0
               ? format_text("killed by signal {} ({}{})", {signal, signal_name(signal), limit_behind_signal(signal)})
               : format_text("exit code {}", {code});
  }

  friend constexpr bool operator==(const ExitStatus&, const ExitStatus&) = default;
};

}  // namespace DTRAIN_NAMESPACE::launch
