#pragma once
/// @file
/// Cryptographic random bytes for servers and SharedMemory: nonces, secrets, job ids, names of shared memory.

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>

#include "dtrain/core/crypto/sha256.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

/// Bytes of getrandom(2). Blocking: only early in the boot of a machine. @throws Error (posix)
template <std::size_t N>
std::array<std::byte, N> random_bytes() {
  std::array<std::byte, N> bytes{};
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (count < 0 && errno != EINTR) {
      throw_errno("asking the system for random bytes");
    }
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  return bytes;
}

/// 32 hexadecimal digits.
inline std::string random_job_id() {
  return hex(random_bytes<16>());
}

}  // namespace DTRAIN_NAMESPACE
