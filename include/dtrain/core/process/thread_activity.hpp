#pragma once
/// @file
/// ThreadActivity: whether a thread of this process computes, or in which system call it sleeps, as /proc tells it.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/process/system_files.hpp"

namespace DTRAIN_NAMESPACE {

/// Id of the calling thread.
pid_t current_thread() noexcept;

/// Threads: one.
class ThreadActivity {
 public:
  explicit ThreadActivity(SystemFiles files = SystemFiles()) : files_(std::move(files)) {}

  /// "runs"; "runs (40% of a core)"; "sleeps in read() of /data/shard-17"; "is blocked in read() of /nfs/a:
  /// nfs_wait_bit"; empty where /proc says nothing. The share is that since the last call for the same thread. Source:
  /// proc(5), task/TID/{stat,syscall,wchan}.
  std::string look(pid_t thread);

  /// Thousandths of the time since the last call for the same thread in which it was ready to run, and had no core; 0
  /// where /proc says nothing. Source: Linux, Documentation/scheduler/sched-stats, /proc/PID/schedstat.
  std::uint32_t core_wait(pid_t thread);

 private:
  SystemFiles files_;
  pid_t thread_ = 0;
  std::uint64_t ticks_ = 0;  ///< processor time until `at_`
  Deadline::Clock::time_point at_{};
  pid_t delayed_thread_ = 0;
  std::uint64_t delay_ = 0;  ///< nanoseconds without a core until `delay_at_`
  Deadline::Clock::time_point delay_at_{};
};

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

namespace detail {

/// A system call in which threads sleep.
struct SleepingCall {
  long number;
  const char* name;
  bool has_descriptor;  ///< its first argument
};

inline constexpr SleepingCall sleeping_calls[] = {
    {SYS_read, "read()", true},
    {SYS_write, "write()", true},
    {SYS_pread64, "pread()", true},
    {SYS_pwrite64, "pwrite()", true},
    {SYS_readv, "readv()", true},
    {SYS_writev, "writev()", true},
    {SYS_recvfrom, "recv()", true},
    {SYS_recvmsg, "recvmsg()", true},
    {SYS_sendto, "send()", true},
    {SYS_sendmsg, "sendmsg()", true},
    {SYS_accept, "accept()", true},
    {SYS_connect, "connect()", true},
    {SYS_fsync, "fsync()", true},
    {SYS_fdatasync, "fdatasync()", true},
    {SYS_flock, "flock()", true},
    {SYS_ioctl, "ioctl()", true},
    {SYS_openat, "open()", false},
    {SYS_ppoll, "poll()", false},
    {SYS_pselect6, "select()", false},
    {SYS_epoll_pwait, "epoll_wait()", false},
    {SYS_nanosleep, "nanosleep()", false},
    {SYS_clock_nanosleep, "nanosleep()", false},
    {SYS_wait4, "wait()", false},
    {SYS_waitid, "wait()", false},
    {SYS_futex, "futex(), such as for a lock or another thread", false},
#ifdef SYS_poll
    {SYS_poll, "poll()", false},
    {SYS_select, "select()", false},
    {SYS_epoll_wait, "epoll_wait()", false},
    {SYS_open, "open()", false},
#endif
};

/// "read() of /data/shard-17", of "0 0x3 0x7f..."; empty for other text.
inline std::string call_text(const std::string& syscall) {
  char* end = nullptr;
  const long number = std::strtol(syscall.c_str(), &end, 10);
  if (end == syscall.c_str() || number < 0) return {};
  for (const SleepingCall& each : sleeping_calls) {
    if (each.number != number) continue;
    if (!each.has_descriptor) return each.name;
    const std::string file = link_target("/proc/self/fd/" + std::to_string(std::strtol(end, nullptr, 16)));
    return file.empty() ? each.name : format_text("{} of {}", {each.name, file});
  }
  return "system call " + std::to_string(number);
}

}  // namespace detail

DTRAIN_DEFINED pid_t current_thread() noexcept {
  thread_local const pid_t id = ::gettid();
  return id;
}

DTRAIN_DEFINED std::string ThreadActivity::look(pid_t thread) {
  constexpr int ticks_fields = 10;  // utime is the 11th field behind the state, stime the next one
  const std::string folder = format_text("/proc/self/task/{}/", {thread});
  const std::string stat = files_.line(folder + "stat").value_or("");
  const std::size_t name_end = stat.rfind(") ");
  if (thread <= 0 || name_end == std::string::npos || name_end + 3 >= stat.size()) return {};
  const char state = stat[name_end + 2];
  const char* at = stat.c_str() + name_end + 3;
  std::uint64_t ticks = 0;
  for (int field = 0; field < ticks_fields + 2; ++field) {
    char* end = nullptr;
    const unsigned long long value = std::strtoull(at, &end, 10);  // a negative one is of no matter
    if (field >= ticks_fields) ticks += value;
    at = end;
  }
  const auto now = Deadline::Clock::now();
  const bool is_same = std::exchange(thread_, thread) == thread;
  const double seconds = std::chrono::duration<double>(now - std::exchange(at_, now)).count();
  const std::uint64_t before = std::exchange(ticks_, ticks);
  const long per_second = ::sysconf(_SC_CLK_TCK);
  const double share = is_same && seconds > 0.1 && per_second > 0 && ticks >= before
                           ? static_cast<double>(ticks - before) / static_cast<double>(per_second) / seconds
                           : -1;
  if (state == 'R' || share > 0.5) {
    const int tenths = static_cast<int>(10 * share + 0.5);
    return share < 0 || tenths >= 10 ? "runs"
           : tenths == 0             ? "runs (less than 5% of a core)"
                                     : format_text("runs ({}0% of a core)", {tenths});
  }
  if (state == 'T' || state == 't') return "is stopped";
  const std::string call = detail::call_text(files_.line(folder + "syscall").value_or(""));
  if (state != 'D') return call.empty() ? "sleeps" : "sleeps in " + call;
  const std::string wait = files_.line(folder + "wchan").value_or("");
  const bool is_known = !wait.empty() && wait != "0";
  return format_text("is blocked in {}{}{}",
                     {call.empty() ? "the kernel" : call, is_known ? ": " : "", is_known ? wait : ""});
}

DTRAIN_DEFINED std::uint32_t ThreadActivity::core_wait(pid_t thread) {
  const std::string text = files_.line(format_text("/proc/self/task/{}/schedstat", {thread})).value_or("");
  char* second = nullptr;
  static_cast<void>(std::strtoull(text.c_str(), &second, 10));
  const std::uint64_t delay = std::strtoull(second, nullptr, 10);
  const auto now = Deadline::Clock::now();
  const bool is_same = std::exchange(delayed_thread_, thread) == thread && !text.empty();
  const double passed = std::chrono::duration<double, std::nano>(now - std::exchange(delay_at_, now)).count();
  const std::uint64_t before = std::exchange(delay_, delay);
  if (!is_same || delay < before || passed <= 0) return 0;
  return static_cast<std::uint32_t>(std::min(1e3, 1e3 * static_cast<double>(delay - before) / passed));
}

}  // namespace DTRAIN_NAMESPACE

#endif  // DTRAIN_DEFINITIONS
