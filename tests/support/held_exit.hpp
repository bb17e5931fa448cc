#pragma once
/// @file
/// A process whose end the test holds up, as a GPU's driver does while it frees what the process has on devices.

#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>

#include "support/gate.hpp"

namespace support {

/// Traces another process. Once that is killed it is held up before the kernel closes its files, where drivers free
/// device memory; nobody can reap it until then. Threads: one.
class HeldExit {
 public:
  explicit HeldExit(pid_t process)
      : process_(process), traces_(::ptrace(PTRACE_SEIZE, process, nullptr, PTRACE_O_TRACEEXIT) == 0) {}
  HeldExit(const HeldExit&) = delete;
  HeldExit& operator=(const HeldExit&) = delete;
  ~HeldExit() { static_cast<void>(release()); }

  /// Whether the system lets this process trace the other one.
  bool traces() const { return traces_; }

  /// Blocking. @returns whether the process has been killed in time, and is held up
  bool is_ending_soon() {
    return holds_soon([this] {
      int status = 0;
      is_ending_ = is_ending_ || (::waitpid(process_, &status, WNOHANG | __WALL) == process_ && WIFSTOPPED(status) &&
                                  status >> 16 == PTRACE_EVENT_EXIT);
      return is_ending_;
    });
  }

  /// Lets the process end. @returns whether it was held up
  bool release() {
    const bool was_held = traces_ && ::ptrace(PTRACE_DETACH, process_, nullptr, nullptr) == 0;
    traces_ = false;
    return was_held;
  }

 private:
  const pid_t process_;
  bool traces_;
  bool is_ending_ = false;
};

}  // namespace support
