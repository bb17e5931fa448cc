#pragma once
/// @file
/// A TCP proxy on the loopback address whose connections break when a test says so.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/net/framing/frame.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"

namespace dtrain_test {

/// Carries bytes both ways on a thread of its own. Threads: cut, hold and the rest from any.
class CuttingProxy {
 public:
  enum class How { reset, end };

  /// @param port where it listens; any free one for 0
  /// @param host the last number of its address, 127.0.0.host
  explicit CuttingProxy(std::uint16_t target, std::uint16_t port = 0, std::uint32_t host = 1)
      : target_(target), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(port, host);
    socklen_t size = sizeof address;
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_.get(), 64) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("the proxy cannot listen");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this](const std::stop_token& stop) { carry(stop); });
  }
  CuttingProxy(const CuttingProxy&) = delete;
  CuttingProxy& operator=(const CuttingProxy&) = delete;

  std::uint16_t port() const { return port_; }
  int accepted() const { return accepted_.load(); }

  /// How many frames of a kind have been carried to the target.
  int frames(dtrain::rendezvous::MessageKind kind) const { return frames_.at(static_cast<std::size_t>(kind)).load(); }

  /// Once the next frame of a kind has been carried to the target, breaks every connection, and new ones.
  void cut_behind(dtrain::rendezvous::MessageKind kind) { last_kind_.store(static_cast<std::size_t>(kind)); }

  /// Breaks every connection that there is.
  void cut(How how) {
    const std::lock_guard lock(mutex_);
    for (Pair& pair : pairs_) {
      if (how == How::reset) {
        const linger at_once{1, 0};
        ::setsockopt(pair.first.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        ::setsockopt(pair.second.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      }
    }
    pairs_.clear();
  }

  /// While it is on, new connections break at once.
  void refuse(bool on) { refusing_.store(on); }
  int refused() const { return refused_.load(); }

  /// While it is on, only the first piece that the target sends over a connection is carried.
  void mute(bool on) { muting_.store(on); }

  /// Carries 4 KiB at most in each direction, then pauses for so long.
  void throttle(std::chrono::milliseconds pause) { pause_.store(pause); }

  /// While it is on, nothing is carried, and nothing breaks: a path that loses everything.
  void hold(bool on) { holding_.store(on); }

 private:
  struct Pair {
    dtrain::Descriptor first;
    dtrain::Descriptor second;
    bool has_answered = false;
    dtrain::net::FrameParser sent{};  ///< to the target
  };

  static sockaddr_in loopback(std::uint16_t port, std::uint32_t host = 1) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + host);
    return address;
  }

  void carry(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::vector<pollfd> waited{{listener_.get(), POLLIN, 0}};
      if (!holding_.load()) {
        const std::lock_guard lock(mutex_);
        for (const Pair& pair : pairs_) {
          waited.push_back({pair.first.get(), POLLIN, 0});
          waited.push_back({pair.second.get(), POLLIN, 0});
        }
      }
      if (::poll(waited.data(), waited.size(), 1) <= 0) continue;
      if (waited.front().revents != 0) {
        admit();
      }
      pump();
      std::this_thread::sleep_for(pause_.load());
    }
  }

  void admit() {
    dtrain::Descriptor near(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!near || refusing_.load()) {
      ++refused_;
      return;
    }
    dtrain::Descriptor far(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(target_);
    if (::connect(far.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      const std::lock_guard lock(mutex_);
      pairs_.push_back({std::move(near), std::move(far)});
      ++accepted_;
    }
  }

  void pump() {
    if (holding_.load()) return;
    const std::lock_guard lock(mutex_);
    bool is_last = false;
    std::erase_if(pairs_, [&](Pair& pair) {
      const bool is_muted = muting_.load() && pair.has_answered;
      const bool is_open =
          forward(pair.first.get(), pair.second.get(),
                  [&](auto bytes) { is_last = count_frames(pair.sent, bytes) || is_last; }) &&
          (is_muted || forward(pair.second.get(), pair.first.get(), [&](const auto&) { pair.has_answered = true; }));
      return !is_open;
    });
    if (is_last) {
      last_kind_.store(no_kind);
      refusing_.store(true);
      pairs_.clear();
    }
  }

  /// @returns whether the last one that is to be carried is among them
  bool count_frames(dtrain::net::FrameParser& parser, std::span<const std::byte> bytes) {
    bool is_last = false;
    parser.feed(bytes);
    while (const auto frame = parser.next()) {
      if (frame->empty()) continue;
      const auto kind = static_cast<std::size_t>(frame->front());
      if (kind < frames_.size()) ++frames_[kind];
      is_last = is_last || kind == last_kind_.load();
    }
    return is_last;
  }

  /// False once either end is gone. @param carried gets the bytes that were carried
  template <class Carried>
  static bool forward(int from, int to, Carried carried) {
    std::array<std::byte, 4096> buffer;
    const ssize_t count = ::recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    const std::span bytes(buffer.data(), static_cast<std::size_t>(count));
    if (count == 0 || ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL) != count) return false;
    carried(bytes);
    return true;
  }

  std::uint16_t target_;
  dtrain::Descriptor listener_;
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  std::vector<Pair> pairs_;
  std::atomic<bool> refusing_{false};
  std::atomic<bool> holding_{false};
  std::atomic<std::chrono::milliseconds> pause_{std::chrono::milliseconds(0)};
  std::atomic<bool> muting_{false};
  std::atomic<int> accepted_{0};
  std::atomic<int> refused_{0};
  static constexpr std::size_t no_kind = 0;
  std::array<std::atomic<int>, 32> frames_{};
  std::atomic<std::size_t> last_kind_{no_kind};
  std::jthread thread_;  ///< last: it ends before what it uses
};

}  // namespace dtrain_test
