#pragma once
/// @file
/// A system call that fails with an errno for this process and its children, as a security policy makes it fail.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <optional>

namespace support {

/// For good: use it in a forked child, or before exec. May be called for several calls. @returns false where this
/// machine installs no seccomp filter
/// @param first the call fails with this first argument alone; nullopt: with any
inline bool deny_call(long number, int error, std::optional<__u32> first = std::nullopt) {
  constexpr __u32 low_word = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 0 : 4;  // of an argument, which has 8 bytes
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<__u32>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<__u32>(offsetof(seccomp_data, args)) + low_word),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, first.value_or(0), 0, static_cast<__u8>(first ? 1 : 0)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (static_cast<__u32>(error) & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{sizeof filter / sizeof *filter, filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace support
