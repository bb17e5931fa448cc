#pragma once
/// @file
/// UnixConnection, UnixListener: blocking connections between processes of a host, by abstract Unix sockets; their
/// messages carry descriptors.

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::net {

/// Credentials of the peer process, as the kernel recorded them when the connection was made.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

/// A message, with the descriptor that it carried, if any.
struct ReceivedDescriptor {
  Descriptor descriptor;
  std::vector<std::byte> bytes;
};

namespace detail {

/// Abstract address of a name of 1 to 107 bytes. It has no file, and ends with its socket.
struct AbstractAddress {
  explicit AbstractAddress(std::string_view name) {
    if (name.empty() || name.size() > sizeof address.sun_path - 1) {
      throw_error(Errc::invalid_argument, "a Unix socket's name has 1 to 107 bytes, not {}", {name.size()});
    }
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t size = 0;
};

inline Descriptor unix_socket(const std::string& doing) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) {
    throw_errno(doing);
  }
  return socket;
}

}  // namespace detail

/// One end of a connection that keeps message boundaries.
/// Blocking: every function with a deadline, up to it. Threads: one sends and one receives at a time.
class UnixConnection {
 public:
  static constexpr std::size_t max_message_bytes = 4096;

  explicit UnixConnection(Descriptor socket) noexcept : socket_(std::move(socket)) {}

  /// @throws Error (posix): ECONNREFUSED if no process listens under that name; Error (timeout)
  static UnixConnection connect(std::string_view name, Deadline deadline) {
    const std::string doing = format_text("connecting to the Unix socket '{}'", {name});
    const detail::AbstractAddress address(name);
    Descriptor socket = detail::unix_socket(doing);
    while (::connect(socket.get(), address.data(), address.size) != 0) {
      if (errno != EAGAIN && errno != EINTR) {
        throw_errno("{}", {doing},
                    "the process that listens there must run on this host, in the same network namespace");
      }
      pause_before_retry(deadline, doing);  // its backlog is full
    }
    return UnixConnection(std::move(socket));
  }

  /// Sends a message of 1 to 4096 bytes with a descriptor; the receiver gets a copy of it. The caller keeps
  /// `descriptor`. @throws Error (timeout, closed, posix)
  void send_descriptor(int descriptor, std::span<const std::byte> bytes, Deadline deadline) {
    if (bytes.empty() || bytes.size() > max_message_bytes) {
      throw_error(Errc::invalid_argument, "a Unix socket's message has 1 to 4096 bytes, not {}", {bytes.size()});
    }
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = message_of(part, control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    while (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) < 0) {
      const int error = errno;
      if (error == EPIPE || error == ECONNRESET) {
        throw_error(Errc::closed, "sending to a process on this host: it has closed its Unix socket");
      }
      if (error == EAGAIN) {
        wait_descriptor(socket_.get(), POLLOUT, deadline, "sending to a process on this host");
      } else if (error != EINTR) {
        throw_posix(error, "sending to a process on this host");
      }
    }
  }

  /// Receives the next message and its descriptor, which is close-on-exec.
  /// @throws Error (timeout); Error (closed); Error (protocol) for a message without a descriptor, with more than one,
  /// or longer than 4096 bytes (its descriptors are closed)
  ReceivedDescriptor receive_descriptor(Deadline deadline) {
    ReceivedDescriptor received;
    received.bytes.resize(max_message_bytes);
    std::vector<Descriptor> descriptors;
    descriptors.reserve(max_control_descriptors);
    iovec part{received.bytes.data(), received.bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(max_control_descriptors * sizeof(int))] = {};
    msghdr message{};
    ssize_t count = -1;
    bool was_reset = false;
    while (count < 0) {
      message = message_of(part, control);
      count = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
      const int error = errno;
      if (count < 0 && error == EAGAIN) {
        wait_descriptor(socket_.get(), POLLIN, deadline, "receiving from a process on this host");
      } else if (count < 0 && error == ECONNRESET && !was_reset) {
        was_reset = true;  // the peer closed without reading everything; its earlier messages are still readable
      } else if (count < 0 && error != EINTR && error != ECONNRESET) {
        throw_posix(error, "receiving from a process on this host");
      } else if (count == 0 || (count < 0 && error == ECONNRESET)) {
        throw_error(Errc::closed, "receiving from a process on this host: it has closed its Unix socket");
      }
    }
    received.bytes.resize(static_cast<std::size_t>(count));
    adopt_descriptors(message, descriptors);  // first, so that none stays open
    if ((message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0 || descriptors.size() > 1) {
      throw_error(Errc::protocol,
                  "receiving from a process on this host: the message is too long or carries more than one descriptor");
    }
    if (descriptors.empty()) {
      throw_error(Errc::protocol, "receiving a descriptor: the message came without one");
    }
    received.descriptor = std::move(descriptors.front());
    return received;
  }

  /// Sends a message of 1 to 4096 bytes. Blocking: no. @returns false if the peer has closed, or takes none now
  bool send_text(std::string_view text) noexcept {
    ssize_t sent = -1;
    do {
      sent = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent == static_cast<ssize_t>(text.size());
  }

  /// The next message, its first 4096 bytes; nullopt once the peer has closed. @throws Error (timeout, posix)
  std::optional<std::string> receive_text(Deadline deadline) {
    std::string text(max_message_bytes, '\0');
    for (;;) {
      const ssize_t count = ::recv(socket_.get(), text.data(), text.size(), 0);
      if (count == 0 || (count < 0 && errno == ECONNRESET)) return std::nullopt;
      if (count > 0) {
        text.resize(static_cast<std::size_t>(count));
        return text;
      }
      if (errno == EAGAIN) {
        wait_descriptor(socket_.get(), POLLIN, deadline, "receiving from a process on this host");
      } else if (errno != EINTR) {
        throw_errno("receiving from a process on this host");
      }
    }
  }

  /// @throws Error (posix)
  PeerCredentials peer_credentials() const {
    ucred credentials{};
    socklen_t size = sizeof credentials;
    if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
      throw_errno("asking who is at the other end of a Unix socket");
    }
    return {credentials.pid, credentials.uid, credentials.gid};
  }

  int descriptor() const noexcept { return socket_.get(); }

 private:
  template <std::size_t Bytes>
  static msghdr message_of(iovec& part, char (&control)[Bytes]) noexcept {
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = Bytes;
    return message;
  }

  /// Allocates nothing, so no exception can leave a descriptor without an owner.
  static void adopt_descriptors(msghdr& message, std::vector<Descriptor>& descriptors) noexcept {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
        continue;
      }
      const std::size_t number = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < number; ++i) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
        descriptors.emplace_back(descriptor);
      }
    }
  }

  static constexpr std::size_t max_control_descriptors = 8;

  Descriptor socket_;
};

/// Listens under a name that processes of this host (in one network namespace) can connect to.
class UnixListener {
 public:
  /// @throws Error (posix): EADDRINUSE if another socket has the name
  explicit UnixListener(std::string_view name) {
    const std::string doing = format_text("listening at the Unix socket '{}'", {name});
    const detail::AbstractAddress address(name);
    socket_ = detail::unix_socket(doing);
    if (::bind(socket_.get(), address.data(), address.size) != 0 || ::listen(socket_.get(), 128) != 0) {
      throw_errno(doing);
    }
  }

  /// The next connection. Blocking: until the deadline. @throws Error (timeout, posix)
  UnixConnection accept(Deadline deadline) {
    const std::string doing = "accepting a process on this host";
    for (;;) {
      Descriptor accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (accepted) {
        return UnixConnection(std::move(accepted));
      }
      if (errno == EAGAIN) {
        wait_descriptor(socket_.get(), POLLIN, deadline, doing);
      } else if (errno == EINTR || errno == ECONNABORTED) {
        pause_before_retry(deadline, doing);
      } else {
        throw_errno(doing);
      }
    }
  }

  int descriptor() const noexcept { return socket_.get(); }

 private:
  Descriptor socket_;
};

}  // namespace DTRAIN_NAMESPACE::net
