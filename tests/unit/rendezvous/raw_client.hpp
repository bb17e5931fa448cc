#pragma once
/// @file
/// A client of the store that need not follow the protocol: blocking calls on a socket.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/net/framing/frame.hpp"
#include "dtrain/rendezvous/protocol/codec.hpp"

namespace rendezvous_test {

/// Everything that a store may send but challenges and heartbeats.
using FromStore = std::variant<dtrain::rendezvous::Accepted, dtrain::rendezvous::Refused, dtrain::rendezvous::Failure,
                               dtrain::rendezvous::Welcome, dtrain::rendezvous::Response, dtrain::rendezvous::Left>;

class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    connected_ = connects(socket_.get(), port);
  }

  /// Connects a socket to a port of this machine.
  static bool connects(int socket, std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }

  bool connected() const { return connected_; }

  /// False once the server has closed; never blocks for long, since the tests send little.
  bool send(const std::vector<std::byte>& bytes) {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }

  /// The bytes with their length before them; another length where one is given.
  static std::vector<std::byte> framed(std::vector<std::byte> payload,
                                       std::optional<std::uint32_t> length = std::nullopt) {
    dtrain::Serializer writer;
    std::uint32_t size = length.value_or(static_cast<std::uint32_t>(payload.size()));
    writer.number(size);
    writer.bytes(payload);
    return writer.take();
  }
  bool send_frame(const std::vector<std::byte>& payload) { return send(framed(payload)); }

  /// Says who it is, all at once: to a store without a secret.
  bool enter(const dtrain::rendezvous::Join& join) { return send_frame(encode(hello())) && send_frame(encode(join)); }
  bool enter(int rank, int world_size) { return enter(join(rank, world_size)); }

  /// The next frame, or nothing once the server has closed or after ten seconds.
  std::optional<std::vector<std::byte>> receive_frame() {
    for (;;) {
      if (auto frame = parser_.next()) {
        return frame;
      }
      pollfd readable{socket_.get(), POLLIN, 0};
      std::byte buffer[4096];
      const ssize_t count = ::poll(&readable, 1, 10000) == 1 ? ::recv(socket_.get(), buffer, sizeof buffer, 0) : -1;
      if (count <= 0) {
        closed_ = readable.revents != 0;
        return std::nullopt;
      }
      parser_.feed(std::span<const std::byte>(buffer, static_cast<std::size_t>(count)));
    }
  }

  /// How many frames the next single read gives, of what fits into 64 KiB: what the store wrote at once.
  std::size_t frames_of_one_read() {
    pollfd readable{socket_.get(), POLLIN, 0};
    std::vector<std::byte> buffer(std::size_t{64} << 10);
    const ssize_t count = ::poll(&readable, 1, 10000) == 1 ? ::recv(socket_.get(), buffer.data(), buffer.size(), 0) : 0;
    parser_.feed(std::span<const std::byte>(buffer.data(), static_cast<std::size_t>(count > 0 ? count : 0)));
    std::size_t frames = 0;
    while (parser_.next()) {
      ++frames;
    }
    return frames;
  }

  bool send_heartbeat() {
    return send_frame({dtrain::rendezvous::heartbeat_frame.begin(), dtrain::rendezvous::heartbeat_frame.end()});
  }

  /// The next message that is no challenge and no heartbeat, or nothing.
  std::optional<FromStore> receive() {
    while (const auto frame = receive_frame()) {
      if (const auto answer = dtrain::rendezvous::decode<dtrain::rendezvous::HandshakeReply>(*frame)) {
        if (std::holds_alternative<dtrain::rendezvous::Challenge>(*answer)) {
          continue;
        }
        return widen(*answer);
      }
      if (const auto message = dtrain::rendezvous::decode<dtrain::rendezvous::ToRank>(*frame)) {
        return widen(*message);
      }
    }
    return std::nullopt;
  }

  template <class Message>
  bool receives() {
    const auto message = receive();
    return message && std::holds_alternative<Message>(*message);
  }

  /// Whether the server closes within ten seconds, whatever it sends before.
  bool is_closed() {
    while (receive()) {
    }
    return closed_;
  }

  /// Whether the server has closed, without waiting for it. What it has sent is lost.
  bool has_been_closed() {
    std::byte buffer[4096];
    for (;;) {
      const ssize_t count = ::recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (count <= 0) {
        return count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
      }
    }
  }

  /// Whether bytes, or the end of the stream, can be read at once.
  bool has_more() const {
    pollfd readable{socket_.get(), POLLIN, 0};
    return ::poll(&readable, 1, 0) == 1;
  }

  void close() { socket_.reset(); }

  /// Closes the connection so that the server sees it reset.
  void reset() {
    const linger at_once{1, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    socket_.reset();
  }

  static dtrain::rendezvous::Hello hello() {
    dtrain::rendezvous::Hello hello;
    hello.version = dtrain::version_text;
    return hello;
  }

  static dtrain::rendezvous::Join join(int rank, int world_size) {
    dtrain::rendezvous::Join join;
    join.info.rank = rank;
    join.info.host_id = join.info.host = "raw-host";
    join.world_size = world_size;
    join.join_timeout_ms = ~std::uint64_t{0};  // longer than any clock counts: the store's own deadline is earlier
    return join;
  }

 private:
  template <class Variant>
  static FromStore widen(const Variant& message) {
    return std::visit(
        [](const auto& each) -> FromStore {
          if constexpr (std::is_constructible_v<FromStore, decltype(each)>) {
            return each;
          } else {
            return dtrain::rendezvous::Left{};  // a challenge, which does not come here
          }
        },
        message);
  }

  dtrain::Descriptor socket_;
  dtrain::net::FrameParser parser_{dtrain::rendezvous::max_frame_bytes};
  bool connected_ = false;
  bool closed_ = false;
};

}  // namespace rendezvous_test
