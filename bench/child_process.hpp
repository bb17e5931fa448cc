#pragma once
/// @file
/// A forked process of a benchmark, and the channel between it and the one that measures.

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"

namespace bench {

/// Sends and receives plain structs, each in one packet. Both sides have one.
class Channel {
 public:
  explicit Channel(dtrain::Descriptor socket) noexcept : socket_(std::move(socket)) {}

  int descriptor() const noexcept { return socket_.get(); }

  template <class Message>
  void send(const Message& message) const {
    static_assert(std::is_trivially_copyable_v<Message>);
    if (::send(socket_.get(), &message, sizeof message, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof message)) {
      throw dtrain::errno_error("sending to a process of the benchmark");
    }
  }

  /// Blocking: until the deadline. @throws Error (timeout); Error (closed) where the other process has ended
  template <class Message>
  Message receive(dtrain::Deadline deadline, const char* from) const {
    static_assert(std::is_trivially_copyable_v<Message>);
    for (;;) {
      pollfd readable{socket_.get(), POLLIN, 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
      const int ready = ::poll(&readable, 1, static_cast<int>(left));
      if (ready == 0) {
        throw dtrain::Error(dtrain::Errc::timeout, std::string("waiting for ") + from + ": the deadline passed");
      }
      if (ready > 0) {
        break;
      }
      if (errno != EINTR) {
        throw dtrain::errno_error("waiting for a process of the benchmark");
      }
    }
    Message message;
    const ssize_t count = ::recv(socket_.get(), &message, sizeof message, 0);
    if (count != static_cast<ssize_t>(sizeof message)) {
      throw dtrain::Error(dtrain::Errc::closed, std::string(from) + " has ended before its time");
    }
    return message;
  }

 private:
  dtrain::Descriptor socket_;
};

/// Ends with its owner, whatever happens. Threads: forked from a process that has one thread.
class ChildProcess {
 public:
  /// Runs `body(channel)` in a process of its own; an exception goes to stderr.
  template <class Body>
  explicit ChildProcess(Body body) : ChildProcess(pair(), body) {}
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ChildProcess(ChildProcess&& other) noexcept
      : channel_(std::move(other.channel_)), process_(std::exchange(other.process_, -1)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess() {
    if (process_ > 0) {
      ::kill(process_, SIGKILL);
      while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }

  /// Blocking: until it has ended by itself, or until the deadline.
  void await_end(dtrain::Deadline deadline) {
    while (process_ > 0 && !deadline.passed()) {
      if (::waitpid(process_, nullptr, WNOHANG) == process_) {
        process_ = -1;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  const Channel& channel() const noexcept { return channel_; }
  pid_t process() const noexcept { return process_; }

 private:
  static std::array<dtrain::Descriptor, 2> pair() {
    int sockets[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
      throw dtrain::errno_error("making a channel to a process of the benchmark");
    }
    return {dtrain::Descriptor(sockets[0]), dtrain::Descriptor(sockets[1])};
  }

  template <class Body>
  ChildProcess(std::array<dtrain::Descriptor, 2> sockets, Body& body) : channel_(std::move(sockets[0])) {
    std::fflush(stdout);
    process_ = ::fork();
    if (process_ < 0) {
      throw dtrain::errno_error("starting a process of the benchmark");
    }
    if (process_ == 0) {
      run_and_exit(std::move(sockets[1]), body);
    }
  }

  template <class Body>
  [[noreturn]] void run_and_exit(dtrain::Descriptor socket, Body& body) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    channel_ = Channel(dtrain::Descriptor());
    try {
      body(Channel(std::move(socket)));
      ::_exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "a process of the benchmark: %s\n", error.what());
      ::_exit(1);
    }
  }

  Channel channel_;
  pid_t process_ = -1;
};

}  // namespace bench
