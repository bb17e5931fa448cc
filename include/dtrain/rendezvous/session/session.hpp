#pragma once
/// @file
/// rendezvous::Session: one side of a connection with the store, from handshake to end. SessionHandler: its owner's
/// callbacks.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "dtrain/async/events.hpp"
#include "dtrain/async/task.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/connection.hpp"
#include "dtrain/net/framing/frame.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/protocol/codec.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Bounds of one side of a session.
struct SessionOptions {
  std::size_t outgoing_bytes = std::size_t{64} << 20;  ///< most bytes that may wait to be sent
  std::chrono::milliseconds send{60000};               ///< how long a peer may take no byte of those that wait
  bool is_server = false;                 ///< answers heartbeats, and does not read while many responses wait
  std::chrono::milliseconds answer{500};  ///< interval of a server's heartbeats while a long frame arrives
};

/// Callbacks of a session. Both functions may close the session and destroy the handler.
class SessionHandler {
 public:
  /// A frame was received that is no heartbeat. @returns false if it does not follow the protocol: the session then
  /// ends
  virtual bool on_frame(std::span<const std::byte> frame) = 0;
  /// The session has ended, but not by close(): its connection is closed. @param how the reason, a clause
  virtual void on_disconnected(const std::string& how) = 0;

 protected:
  ~SessionHandler() = default;
};

/// Why a session counts as lost that has sent nothing for `time`.
inline std::string silence_text(Deadline::Clock::duration time) {
  return format_text(
      "it has sent nothing for {} (it is stopped or gets too little processor time, or its host or the way to it is "
      "gone; DTRAIN_LIVENESS_SECONDS is how long that may last)",
      {duration_text(time)});
}

/// A connection that carries frames. The handshake reads and writes one frame after the other; start() then runs a
/// reader and a writer until the connection ends. A session never continues on another connection.
///
/// Bounds: send() rejects frames beyond SessionOptions::outgoing_bytes. A server does not read while more than a
/// sixteenth of that waits to be sent, so that TCP's flow control stops a client that does not read its responses.
/// Lifetime: call close() before releasing the last owner's reference after start(); the loop outlives the session.
/// Threads: the loop's.
class Session : public std::enable_shared_from_this<Session> {
 public:
  /// @param bound largest frame to read, until start()
  explicit Session(net::Connection connection, std::size_t bound = max_frame_bytes)
      : tcp_(std::move(connection)),
        reader_(tcp_, bound),
        writer_(tcp_, max_frame_bytes),
        to_write_(tcp_.loop()),
        room_(tcp_.loop()) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Lets TCP detect a lost host or path by keepalive probes while the connection is idle.
  void watch() { tcp_.set_keepalive(std::chrono::seconds(10), std::chrono::seconds(5), 3); }
  /// For a server: TCP also ends the connection if bytes stay unacknowledged, or not taken, for the liveness time. A
  /// client's bytes may stay unacknowledged: a paused server takes none.
  void watch_unacknowledged(std::chrono::milliseconds liveness) { tcp_.set_user_timeout(liveness); }

  /// @name The handshake, before start()
  /// @{
  async::Task<net::FrameResult> read_frame(Deadline deadline) { return reader_.read_frame(deadline); }
  async::Task<net::IoResult> write_frame(std::span<const std::byte> frame, Deadline deadline) {
    return writer_.write_frame(frame, deadline);
  }
  /// Ends this side's frames: the peer reads the end of the stream after them.
  void shutdown_write() noexcept { tcp_.shutdown_write(); }
  /// @}

  /// Runs the session from the loop's next turn on.
  /// @param first a frame to send before all others; none if it is empty
  void start(SessionHandler& handler, const SessionOptions& options, std::span<const std::byte> first = {}) {
    options_ = options;
    reader_.raise_bound(max_frame_bytes);
    if (!first.empty()) {
      static_cast<void>(writer_.queue(first));  // its queue is empty
    }
    last_alive_ = Deadline::Clock::now();
    async::TaskHandle reading = tcp_.loop().spawn(run(shared_from_this(), &Session::read_all));
    writing_ = tcp_.loop().spawn(run(shared_from_this(), &Session::write_all));
    reading_ = std::move(reading);
    handler_ = &handler;
  }

  /// Whether start() was called, and the session has not ended.
  bool is_open() const noexcept { return handler_ != nullptr; }

  /// Before start(), the frame waits. After the session's end, it is dropped.
  /// @returns false, without sending, if more than SessionOptions::outgoing_bytes would wait
  [[nodiscard]] bool send(OutgoingFrame frame) {
    if (!can_write_) {
      return true;
    }
    if (waiting_bytes_ + frame.size() > options_.outgoing_bytes) {
      return false;
    }
    waiting_bytes_ += frame.size();
    waiting_.push_back(std::move(frame));
    to_write_.set();
    return true;
  }

  /// No effect while 1 MiB is queued, which also shows that this side is alive.
  void send_heartbeat() {
    if (can_write_ && writer_.queued_bytes() < batch_bytes && writer_.queue(heartbeat_frame)) {
      last_heartbeat_ = Deadline::Clock::now();
      to_write_.set();
    }
  }

  /// Ends the session once all frames are sent.
  void close_after_sending() {
    closing_ = true;
    to_write_.set();
  }

  /// Ends the session and closes its connection; the handler is not called any more. No effect before start().
  DTRAIN_NOT_INLINED void close() noexcept {
    if (std::exchange(handler_, nullptr) == nullptr) {
      return;
    }
    reading_.cancel();
    writing_.cancel();
    stop_writing();
    tcp_.close();
  }

  /// When the peer last sent a byte; while this side does not read, when the peer last took or sent one.
  Deadline::Clock::time_point last_alive() const noexcept { return last_alive_; }
  /// Takes from the peer's silence a time in which this process itself did not run.
  void excuse_silence(auto time) noexcept { last_alive_ = std::min(last_alive_ + time, Deadline::Clock::now()); }
  /// Whether this side does not read, because the peer has not taken its responses.
  bool is_paused() const noexcept { return paused_; }
  /// Whether the peer has sent anything since start().
  bool has_received() const noexcept { return has_received_; }
  std::size_t waiting_bytes() const noexcept { return waiting_bytes_; }
  /// This side's address; 0.0.0.0:0 once the connection has ended.
  net::SocketAddress local() const noexcept { return tcp_.local(); }
  net::SocketAddress peer() const noexcept { return tcp_.peer(); }

 private:
  static constexpr std::size_t batch_bytes = std::size_t{1} << 20;
  static constexpr std::chrono::milliseconds linger{1000};
  static constexpr int frames_of_one_turn = 256;
  static constexpr std::chrono::milliseconds step{100};  ///< interval at which write_all() checks a slow peer

  /// Only a server waits for its peer: two sides that wait for each other would deadlock.
  bool lacks_room() const noexcept { return options_.is_server && waiting_bytes_ > options_.outgoing_bytes / 16; }

  /// Drops what waits to be sent, now and later.
  void stop_writing() noexcept {
    can_write_ = false;
    waiting_.clear();
    waiting_bytes_ = 0;
  }

  /// Runs read_all or write_all. The session ends with the reason that it returns, if any, or throws.
  static async::Task<void> run(std::shared_ptr<Session> self, async::Task<std::string> (Session::*direction)()) {
    std::string how;
    try {
      how = co_await ((*self).*direction)();
    } catch (const std::exception& error) {
      how = error.what();
    }
    SessionHandler* const handler = self->handler_;
    if (handler != nullptr && !how.empty()) {
      self->close();
      handler->on_disconnected(how);
    }
  }

  async::Task<std::string> read_all() {
    net::FrameResult frame;
    for (int frames = 0;; ++frames) {
      if (frames == frames_of_one_turn) {  // other sessions of the loop have their turn
        frames = 0;
        co_await tcp_.loop().sleep_for(std::chrono::milliseconds(0));
      }
      paused_ = lacks_room();
      if (paused_) {
        co_await room_.wait(Deadline::unbounded("write_all() makes room, or the session ends because it cannot"));
        continue;
      }
      const std::uint64_t before = reader_.received_bytes();
      const bool is_whole = reader_.try_read_frame(frame);
      if (reader_.received_bytes() != before || (is_whole && frame.ok())) {
        note_bytes(is_whole);
      }
      if (!is_whole) {
        co_await tcp_.readable(Deadline::unbounded("the session watches the peer and ends the connection"));
        continue;
      }
      if (!frame.ok()) {
        co_return write_error_.empty() ? frame.reason : write_error_;
      }
      const bool is_valid = receive_frame(frame.payload);
      if (!is_open()) {
        co_return std::string();
      }
      if (!is_valid) {
        co_return "it sent bytes that do not follow the protocol";
      }
    }
  }

  /// Every received byte shows that the peer is alive, since one frame may take longer than the liveness time. A server
  /// also sends heartbeats while a long frame arrives, since the sender's own heartbeats are queued after that frame.
  void note_bytes(bool are_whole) {
    has_received_ = true;
    last_alive_ = Deadline::Clock::now();
    if (options_.is_server && !are_whole && last_alive_ - last_heartbeat_ >= options_.answer) {
      send_heartbeat();
    }
  }

  /// @returns false for a protocol violation
  bool receive_frame(std::span<const std::byte> frame) {
    if (!is_heartbeat(frame)) {
      return handler_->on_frame(frame);
    }
    if (options_.is_server) {
      send_heartbeat();
    }
    return true;
  }

  async::Task<std::string> write_all() {
    Deadline::Clock::time_point last_taken = Deadline::Clock::now();
    for (;;) {
      while (!waiting_.empty() && writer_.queued_bytes() < batch_bytes) {
        const OutgoingFrame& next = waiting_.front();
        static_cast<void>(writer_.queue(next.own, next.parts));  // the writer's bound is far above a batch
        waiting_bytes_ -= next.size();
        waiting_.pop_front();
      }
      if (paused_ && !lacks_room()) {
        room_.set();
      }
      if (writer_.queued_bytes() == 0 && closing_) {
        tcp_.shutdown_write();  // the peer reads all bytes and closes, or this side closes after `linger`
        co_await tcp_.loop().sleep_for(linger);
        co_return "it was asked to close";
      }
      if (writer_.queued_bytes() == 0) {
        co_await to_write_.wait(Deadline::unbounded("the end of the session destroys this task"));
        last_taken = Deadline::Clock::now();
        continue;
      }
      net::IoResult result = writer_.try_flush();
      if (result.status == net::IoStatus::timed_out) {
        const std::size_t at_once = result.bytes;
        result = co_await writer_.flush(Deadline::after(std::min(options_.send, step)));
        result.bytes += at_once;
      }
      if (result.status == net::IoStatus::closed) {  // the peer's last frames may not be read yet: read_all() goes on
        write_error_ = result.reason();
        stop_writing();
        room_.set();
        co_return std::string();
      }
      const Deadline::Clock::time_point now = Deadline::Clock::now();
      if (result.bytes > 0) {
        last_taken = now;
        last_alive_ = paused_ ? now : last_alive_;
      } else if (now - (options_.is_server ? last_taken : std::max(last_taken, last_alive_)) >= options_.send) {
        // A server that is paused takes nothing from its client, which reads meanwhile.
        co_return format_text("it took nothing for {}", {duration_text(options_.send)});
      }
    }
  }

  net::Connection tcp_;
  net::FrameReader reader_;
  net::FrameWriter writer_;
  SessionOptions options_{};
  SessionHandler* handler_ = nullptr;  ///< the owner, from start() to the session's end
  std::deque<OutgoingFrame> waiting_;
  std::size_t waiting_bytes_ = 0;
  async::AutoResetEvent to_write_;
  async::AutoResetEvent room_;  ///< the event that read_all() awaits while paused_
  bool paused_ = false;
  bool closing_ = false;
  bool can_write_ = true;
  std::string write_error_;  ///< why nothing can be written any more
  bool has_received_ = false;
  Deadline::Clock::time_point last_alive_ = Deadline::Clock::now();
  Deadline::Clock::time_point last_heartbeat_;
  async::TaskHandle reading_;
  async::TaskHandle writing_;
};

/// For a client: sends heartbeats. Ends if the server sends nothing for the liveness time, in which the time that this
/// process was stopped or got no processor does not count. Lifetime: the session outlives the task.
inline async::Task<void> send_heartbeats(async::EventLoop& loop, Session& session, std::chrono::milliseconds every,
                                         std::chrono::milliseconds liveness) {
  every = std::max(every, std::chrono::milliseconds(1));
  liveness = std::max(liveness, std::chrono::milliseconds(1));
  for (;;) {
    const Deadline::Clock::time_point before = Deadline::Clock::now();
    co_await loop.sleep_for(every);
    const Deadline::Clock::time_point now = Deadline::Clock::now();
    session.excuse_silence(now - before - every);
    if (now - session.last_alive() > liveness) {
      co_return;
    }
    session.send_heartbeat();
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
