#pragma once
/// @file
/// A process with many connections to a store that never join: half of them silent, half with bytes that make no sense.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "bench/child_process.hpp"

namespace bench {

/// What the strangers did.
struct UnauthenticatedCounts {
  std::uint64_t connects = 0;  ///< that succeeded, again after being closed included
  std::uint64_t open = 0;      ///< at the end
};

/// They connect from the start, without success while nobody listens; who is closed connects again after a moment.
class UnauthenticatedClients {
 public:
  UnauthenticatedClients(std::uint16_t port, int count, std::chrono::milliseconds moment)
      : child_([=](const Channel& channel) { Crowd(port, count, moment).stay(channel); }) {}

  /// Until each has been connected at some time.
  void await_all() const { child_.channel().receive<char>(soon(), "the strangers"); }
  UnauthenticatedCounts end() const {
    child_.channel().send('e');
    return child_.channel().receive<UnauthenticatedCounts>(soon(), "the strangers");
  }

 private:
  static dtrain::Deadline soon() { return dtrain::Deadline::after(std::chrono::seconds(60)); }

  class Crowd {
   public:
    Crowd(std::uint16_t port, int count, std::chrono::milliseconds moment)
        : moment_(moment), poller_(::epoll_create1(EPOLL_CLOEXEC)), strangers_(static_cast<std::size_t>(count)) {
      address_.sin_family = AF_INET;
      address_.sin_port = htons(port);
      address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (!poller_) {
        throw dtrain::errno_error("creating an epoll set");
      }
    }

    void stay(const Channel& channel) {
      watch(channel.descriptor(), EPOLLIN, mark_of_channel, EPOLL_CTL_ADD);
      for (std::size_t i = 0; i < strangers_.size(); ++i) {  // one after the other, and so they come again
        waiting_.emplace_back(dtrain::Deadline::after(std::chrono::microseconds(moment_) * i / strangers_.size()), i);
      }
      for (bool told = false, asked = false; !asked;) {
        asked = turn();
        if (!told && were_connected_ == strangers_.size()) {
          told = true;
          channel.send('r');
        }
      }
      channel.send(UnauthenticatedCounts{connects_, open_});
      channel.receive<char>(soon(), "the benchmark");  // which ends this process instead
    }

   private:
    static constexpr std::uint64_t mark_of_channel = ~std::uint64_t{0};

    struct Stranger {
      dtrain::Descriptor socket;
      bool connected = false;
      bool was_connected = false;
    };

    void watch(int descriptor, std::uint32_t events, std::uint64_t mark, int operation) {
      epoll_event event{};
      event.events = events;
      event.data.u64 = mark;
      if (::epoll_ctl(poller_.get(), operation, descriptor, &event) != 0) {
        throw dtrain::errno_error("watching a stranger's connection");
      }
    }

    void connect(std::size_t i) {
      Stranger& stranger = strangers_[i];
      stranger.connected = false;
      stranger.socket = dtrain::Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (!stranger.socket) {
        throw dtrain::errno_error("making a stranger's socket");
      }
      const int result =
          ::connect(stranger.socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_);
      if (result != 0 && errno != EINPROGRESS) {
        return again(i);
      }
      watch(stranger.socket.get(), EPOLLOUT, i, EPOLL_CTL_ADD);
    }

    void again(std::size_t i) {
      Stranger& stranger = strangers_[i];
      open_ -= stranger.connected ? 1 : 0;
      stranger.connected = false;
      stranger.socket.reset();
      waiting_.emplace_back(dtrain::Deadline::after(moment_), i);
    }

    /// Whether the benchmark wants it to end.
    bool turn() {
      std::array<epoll_event, 256> events;
      const int count = ::epoll_wait(poller_.get(), events.data(), 256, waiting_.empty() ? 100 : 1);
      if (count < 0 && errno != EINTR) {
        throw dtrain::errno_error("waiting for strangers' connections");
      }
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        if (event.data.u64 == mark_of_channel) {
          return true;
        }
        happened(static_cast<std::size_t>(event.data.u64), event.events);
      }
      std::vector<std::pair<dtrain::Deadline, std::size_t>> waiting = std::exchange(waiting_, {});
      for (const auto& [deadline, i] : waiting) {
        if (deadline.passed()) {
          connect(i);
        } else {
          waiting_.emplace_back(deadline, i);
        }
      }
      return false;
    }

    void happened(std::size_t i, std::uint32_t events) {
      Stranger& stranger = strangers_[i];
      if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
        return again(i);
      }
      if (!stranger.connected) {
        stranger.connected = true;
        were_connected_ += std::exchange(stranger.was_connected, true) ? 0 : 1;
        ++connects_;
        ++open_;
        speak(i);
        watch(stranger.socket.get(), EPOLLIN, i, EPOLL_CTL_MOD);
        return;
      }
      std::array<std::byte, 512> ignored;
      const ssize_t got = ::recv(stranger.socket.get(), ignored.data(), ignored.size(), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) {
        again(i);
      }
    }

    /// Every second says nothing, every fourth half a frame, every fourth random bytes.
    void speak(std::size_t i) {
      std::array<unsigned char, 64> bytes{};
      if (i % 4 == 1) {
        bytes[0] = 200;
      } else {
        for (unsigned char& byte : bytes) {
          byte = static_cast<unsigned char>(random_());
        }
      }
      if (i % 2 == 1 && ::send(strangers_[i].socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 &&
          errno != EPIPE && errno != ECONNRESET && errno != EAGAIN) {
        throw dtrain::errno_error("sending as a stranger");
      }
    }

    std::chrono::milliseconds moment_;
    sockaddr_in address_{};
    dtrain::Descriptor poller_;
    std::vector<Stranger> strangers_;
    std::vector<std::pair<dtrain::Deadline, std::size_t>> waiting_;
    std::size_t were_connected_ = 0;
    std::uint64_t connects_ = 0;
    std::uint64_t open_ = 0;
    std::mt19937 random_{7};
  };

  ChildProcess child_;
};

}  // namespace bench
