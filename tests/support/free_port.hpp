#pragma once
// A TCP port for a job of a test.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

namespace support {

/// Whether nobody listens at the TCP port now.
inline bool is_free(int port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool bound = descriptor >= 0 && ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(descriptor);
  return bound;
}

/// A TCP port that is free now, below those that Linux gives to outgoing connections. Tests that run at the same time
/// begin to look at different ports.
inline int free_port() {
  constexpr int first = 10'000;
  constexpr int ports = 22'000;
  static int offset = static_cast<int>(::getpid()) * 37 % ports;
  for (int tries = 0; tries < ports; ++tries) {
    offset = (offset + 1) % ports;
    if (is_free(first + offset)) return first + offset;
  }
  throw std::runtime_error("finding a free port");
}

}  // namespace support
