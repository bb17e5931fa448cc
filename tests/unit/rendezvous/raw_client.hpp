#pragma once
/// @file
/// A client of the store that need not follow the protocol: blocking calls on a socket.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/net/descriptor.hpp"
#include "dtrain/net/frame_parser.hpp"
#include "dtrain/rendezvous/codec.hpp"

namespace rendezvous_test {

class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }

  bool connected() const { return connected_; }

  /// False once the server has closed; never blocks for long, since the tests send little.
  bool send(const std::vector<std::byte>& bytes) {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }

  /// The bytes with their length before them; another length where one is given.
  static std::vector<std::byte> framed(const std::vector<std::byte>& payload,
                                       std::optional<std::uint32_t> length = std::nullopt) {
    dtrain::net::ByteWriter writer;
    writer.u32(length.value_or(static_cast<std::uint32_t>(payload.size()))).raw(payload);
    return writer.take();
  }
  bool send_frame(const std::vector<std::byte>& payload) { return send(framed(payload)); }

  /// The next message, or nothing once the server has closed or after ten seconds.
  std::optional<dtrain::rendezvous::ToRank> receive() {
    for (;;) {
      if (const auto frame = parser_.next()) {
        return dtrain::rendezvous::decode_to_rank(*frame);
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

  void close() { socket_.reset(); }

  static dtrain::rendezvous::Hello hello(int rank, int world_size) {
    dtrain::rendezvous::Hello hello;
    hello.version = dtrain::rendezvous::version_text();
    hello.facts.rank = rank;
    hello.facts.host_id = hello.facts.host = "raw-host";
    hello.world_size = world_size;
    hello.patience_ms = 60000;
    return hello;
  }

 private:
  dtrain::net::Descriptor socket_;
  dtrain::net::FrameParser parser_{dtrain::rendezvous::max_frame_bytes};
  bool connected_ = false;
  bool closed_ = false;
};

}  // namespace rendezvous_test
