// deny SYSCALL ERRNO PROGRAM ARGUMENTS...: runs a program for which one system call always fails with an errno, as a
// security policy (SELinux, AppArmor, a container's seccomp profile) makes it fail. Exits with 77 where this machine
// installs no seccomp filter.

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "support/denied_call.hpp"

namespace {

const std::map<std::string, long> numbers{
    {"accept4", SYS_accept4},
    {"close_range", SYS_close_range},
    {"connect", SYS_connect},
    {"eventfd2", SYS_eventfd2},
    {"fchmod", SYS_fchmod},
    {"fchmodat", SYS_fchmodat},
    {"fdatasync", SYS_fdatasync},
    {"fsync", SYS_fsync},
    {"memfd_create", SYS_memfd_create},
    {"mlock", SYS_mlock},
    {"pidfd_open", SYS_pidfd_open},
    {"prctl", SYS_prctl},
    {"prlimit64", SYS_prlimit64},
    {"recvmsg", SYS_recvmsg},
    {"sched_getaffinity", SYS_sched_getaffinity},
    {"sched_setaffinity", SYS_sched_setaffinity},
    {"sendmsg", SYS_sendmsg},
    {"set_mempolicy", SYS_set_mempolicy},
    {"setpgid", SYS_setpgid},
    {"setsockopt", SYS_setsockopt},
    {"signalfd4", SYS_signalfd4},
    {"socket", SYS_socket},
    {"statx", SYS_statx},
    {"tgkill", SYS_tgkill},
    {"timerfd_create", SYS_timerfd_create},
    {"waitid", SYS_waitid},
};

}  // namespace

int main(int argc, char** argv) {
  const auto known = argc < 4 ? numbers.end() : numbers.find(argv[1]);
  const int error = argc < 4 ? 0 : std::atoi(argv[2]);
  if (known == numbers.end() || error <= 0) {
    std::fprintf(stderr, "usage: deny SYSCALL ERRNO PROGRAM ARGUMENTS...; it knows these calls:");
    for (const auto& [name, number] : numbers)
      std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  if (!support::deny_call(known->second, error)) {
    std::fprintf(stderr, "deny: no seccomp filter: %s\n", std::strerror(errno));
    return 77;
  }
  ::execvp(argv[3], argv + 3);
  std::fprintf(stderr, "deny: %s: %s\n", argv[3], std::strerror(errno));
  return 127;
}
