#pragma once
/// @file
/// One connection of the server's, and what waits to be sent on it.

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/net/frame.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/link.hpp"
#include "dtrain/rendezvous/seats.hpp"
#include "dtrain/rendezvous/text.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Lifetime: outlives its tasks; the loop outlives it. Threads: the loop's.
class Peer {
 public:
  Peer(async::EventLoop& loop, SessionId id, net::Connection connection, const Limits& limits)
      : id_(id),
        loop_(loop),
        limits_(limits),
        connection_(std::move(connection)),
        writer_(connection_, max_frame_bytes, limits.outgoing_bytes),
        to_write_(loop),
        taken_(loop) {
    watch_liveness(connection_, limits.send);
  }

  SessionId id() const noexcept { return id_; }
  net::Connection& connection() noexcept { return connection_; }

  /// Queues a frame. False where the peer leaves too much unread.
  [[nodiscard]] bool send(std::span<const std::byte> frame) {
    to_write_.set();
    return writer_.queue(frame);
  }

  /// Ends the connection once everything is sent.
  void close_after_sending() {
    closing_ = true;
    to_write_.set();
  }

  /// Waits while the peer has many answers to take, so that it reads before it asks for more.
  async::Task<void> room() {
    while (writer_.queued_bytes() > limits_.outgoing_bytes / 16) {
      co_await taken_.wait(Deadline::after(limits_.send));
    }
  }

  /// Sends what is queued until the connection ends. @returns how it ended
  async::Task<std::string> write_all() {
    for (;;) {
      if (writer_.queued_bytes() > 0) {
        const net::IoResult result = co_await writer_.flush(Deadline::after(limits_.send));
        taken_.set();
        if (result.status == net::IoStatus::closed) {
          co_return result.reason();
        }
        if (result.status == net::IoStatus::timed_out && result.bytes == 0) {
          co_return "it took nothing for " + seconds_text(limits_.send);
        }
      } else if (closing_) {
        connection_.shutdown_write();  // the peer reads all of it, and closes; who does not close is closed
        co_await loop_.sleep_for(linger);
        co_return "it was told to close";
      } else {
        co_await to_write_.wait(Deadline::after(std::chrono::hours(24)));
      }
    }
  }

 private:
  static constexpr std::chrono::milliseconds linger{1000};

  SessionId id_;
  async::EventLoop& loop_;
  const Limits& limits_;
  net::Connection connection_;
  net::FrameWriter writer_;
  async::AutoResetEvent to_write_;
  async::AutoResetEvent taken_;
  bool closing_ = false;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
