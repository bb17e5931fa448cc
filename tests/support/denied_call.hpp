#pragma once
/// @file
/// A system call that fails with an errno for this process and its children, as a security policy makes it fail.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <optional>

namespace support {

/// A call whose low word of one argument is `value` (BPF_JEQ), at least that (BPF_JGE) or any (BPF_JGE of 0).
struct CallArgument {
  __u32 index = 0;
  __u16 compare = BPF_JGE;
  __u32 value = 0;
};

/// For good: use it in a forked child, or before exec. May be called for several calls. @returns false where this
/// machine installs no seccomp filter
/// @param argument the call fails with such an argument alone
inline bool deny_call(long number, int error, CallArgument argument) {
  constexpr __u32 low_word = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 0 : 4;  // of an argument, which has 8 bytes
  const __u32 offset = static_cast<__u32>(offsetof(seccomp_data, args)) + 8 * argument.index + low_word;
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<__u32>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset),
      BPF_JUMP(static_cast<__u16>(BPF_JMP | argument.compare | BPF_K), argument.value, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (static_cast<__u32>(error) & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{sizeof filter / sizeof *filter, filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// @param first the call fails with this first argument alone; nullopt: with any
inline bool deny_call(long number, int error, std::optional<__u32> first = std::nullopt) {
  return deny_call(number, error, first ? CallArgument{0, BPF_JEQ, *first} : CallArgument{});
}

}  // namespace support
