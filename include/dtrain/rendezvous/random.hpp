#pragma once
/// @file
/// Bytes that nobody can guess: nonces and the names of jobs.

#include <sys/random.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "dtrain/core/error.hpp"
#include "dtrain/rendezvous/message.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Blocking: only early in the boot of a machine. @throws Error (posix)
inline Nonce random_nonce() {
  Nonce nonce{};
  std::size_t done = 0;
  while (done < nonce.size()) {
    const ssize_t count = ::getrandom(nonce.data() + done, nonce.size() - done, 0);
    if (count < 0 && errno != EINTR) {
      throw errno_error("asking the system for random bytes");
    }
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  return nonce;
}

/// 32 hexadecimal digits.
inline std::string random_job_id() {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (const unsigned byte : random_nonce()) {
    text += digits[byte >> 4];
    text += digits[byte & 15U];
  }
  return text;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
