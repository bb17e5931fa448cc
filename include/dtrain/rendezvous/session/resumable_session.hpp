#pragma once
/// @file
/// rendezvous::ResumableSession: one side of a session, which outlives the connections that carry it.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/async/task/task_handle.hpp"
#include "dtrain/core/duration_text.hpp"
#include "dtrain/rendezvous/protocol/session_codec.hpp"
#include "dtrain/rendezvous/session/framed_connection.hpp"
#include "dtrain/rendezvous/session/retransmit_queue.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Bounds of one end of a session.
struct SessionOptions {
  std::size_t outgoing_bytes = std::size_t{64} << 20;  ///< that may wait for a peer that does not read
  std::chrono::milliseconds send{60000};               ///< for a peer that takes nothing
  bool is_server = false;  ///< answers heartbeats, and serves no further requests while many responses wait
  std::chrono::milliseconds answer{500};  ///< how often a store acknowledges bytes of a frame that takes long
};

/// Numbers, sends, keeps and receives the frames of a session. Lifetime: close() before the last owner lets go; the
/// loop outlives it. Threads: the loop's. Its handlers may close it.
class ResumableSession : public std::enable_shared_from_this<ResumableSession> {
 public:
  struct FrameHandlers {
    /// A frame of the session has come. False where it does not follow the protocol: the connection ends.
    std::function<bool(std::span<const std::byte>)> on_frame;
    /// The connection has ended, and no other is attached. @param how a clause
    std::function<void(const std::string& how)> on_end;
  };

  ResumableSession(async::EventLoop& loop, const SessionOptions& options, FrameHandlers handlers)
      : loop_(loop),
        options_(options),
        handlers_(std::move(handlers)),
        queue_(options.outgoing_bytes, max_unacknowledged_bytes),
        to_write_(loop),
        last_received_(Deadline::Clock::now()) {}
  ResumableSession(const ResumableSession&) = delete;
  ResumableSession& operator=(const ResumableSession&) = delete;
  ~ResumableSession() = default;

  /// Goes on over this connection, instead of any that it has. What the connection's writer holds already goes first.
  /// @param has how many frames the peer has. False where it cannot go on from there: then nothing is changed
  bool attach(std::unique_ptr<FramedConnection> connection, std::uint64_t has) {
    if (!queue_.rewind(has)) {
      return false;
    }
    detach();
    connection_ = std::move(connection);
    last_received_ = Deadline::Clock::now();
    reading_ = loop_.spawn(run(shared_from_this(), &ResumableSession::read_all));
    writing_ = loop_.spawn(run(shared_from_this(), &ResumableSession::write_all));
    return true;
  }

  bool attached() const noexcept { return connection_ != nullptr; }

  /// False where the peer leaves too much unread.
  [[nodiscard]] bool send(OutgoingFrame frame) {
    to_write_.set();
    return queue_.push(std::move(frame));
  }

  /// Acknowledges the frames that have come; keeps a connection alive. No effect without one, nor where so much is
  /// under way that the peer receives bytes anyway.
  void send_heartbeat() {
    if (connection_ && connection_->writer.queued_bytes() < batch_bytes) {
      acknowledge();
    }
  }

  /// Ends the connection once everything is sent. Without one, nothing is sent any more.
  void close_after_sending() {
    closing_ = true;
    to_write_.set();
  }

  /// Ends everything; no handler is called any more.
  void close() noexcept {
    handlers_ = {};
    detach();
  }

  std::uint64_t received() const noexcept { return received_; }
  Deadline::Clock::time_point last_received() const noexcept { return last_received_; }
  void reset_liveness_clock() noexcept { last_received_ = Deadline::Clock::now(); }
  std::size_t waiting_bytes() const noexcept { return queue_.waiting_bytes(); }

 private:
  static constexpr std::size_t batch_bytes = std::size_t{1} << 20;
  static constexpr std::size_t most_unserved = std::size_t{1} << 16;  ///< frames; a rank has far fewer requests open
  static constexpr std::chrono::milliseconds linger{1000};
  static constexpr const char* no_protocol = "it sent bytes that do not follow the protocol";

  static constexpr std::chrono::milliseconds step{100};  ///< how often a peer that takes little is looked after

  static Deadline a_day() { return Deadline::after(std::chrono::hours(24)); }

  /// Many frames wait to be sent: a rank has to read answers before it is served more. On one side only: two that
  /// waited so for each other would do so for good.
  bool lacks_room() const noexcept {
    return options_.is_server && queue_.waiting_bytes() > options_.outgoing_bytes / 16;
  }

  void acknowledge() {
    if (connection_ && connection_->writer.queue(encode(Heartbeat{received_}, heartbeat_))) {
      unacknowledged_bytes_ = 0;
      last_heartbeat_ = Deadline::Clock::now();
      to_write_.set();
    }
  }

  /// Ends both directions and the connection.
  void detach() noexcept {
    reading_.cancel();
    writing_.cancel();
    connection_.reset();
    unserved_.clear();  // it was not acknowledged: it comes again
    unserved_bytes_ = 0;
  }

  /// Runs one direction. Its end, or its exception, is the end of the connection.
  static async::Task<void> run(std::shared_ptr<ResumableSession> self,
                               async::Task<std::string> (ResumableSession::*direction)(FramedConnection&)) {
    const FramedConnection* const connection = self->connection_.get();
    std::string how;
    try {
      how = co_await ((*self).*direction)(*self->connection_);
    } catch (const std::exception& error) {
      how = error.what();
    }
    if (self->connection_.get() == connection) {
      self->detach();
      const std::function<void(const std::string&)> on_end = self->handlers_.on_end;
      if (on_end) {
        on_end(how);
      }
    }
  }

  async::Task<std::string> read_all(FramedConnection& connection) {
    net::FrameResult frame;
    for (;;) {
      const std::uint64_t before = connection.reader.received_bytes();
      const bool is_whole = connection.reader.try_read_frame(frame);
      if (connection.reader.received_bytes() != before) {
        note_bytes(is_whole);
      }
      if (!is_whole) {
        co_await connection.tcp.readable(a_day());
        continue;
      }
      if (!frame.ok()) {
        co_return frame.reason;
      }
      const bool is_valid = receive_frame(frame.payload);
      if (connection_.get() != &connection) {
        co_return std::string();
      }
      if (!is_valid) {
        co_return no_protocol;
      }
    }
  }

  /// Every byte is a sign of life: a frame may take longer than the liveness time. The sender of a long one learns of
  /// it, because its heartbeats wait behind it.
  void note_bytes(bool are_whole) {
    last_received_ = Deadline::Clock::now();
    if (options_.is_server && !are_whole && last_received_ - last_heartbeat_ >= options_.answer) {
      send_heartbeat();
    }
  }

  /// What has to wait for room is kept unacknowledged, and the peer sends only so much; acknowledgements are read at
  /// all times, or there would never be room.
  bool receive_frame(Frame& frame) {
    if (const std::optional<std::uint64_t> has = decode_heartbeat(frame)) {
      if (options_.is_server) {
        send_heartbeat();
      }
      const bool is_possible = queue_.acknowledge(*has);
      if (queue_.has_waiting()) {
        to_write_.set();
      }
      return is_possible;
    }
    if (frame.empty()) {
      return false;  // no message is empty
    }
    if (unserved_.empty() && !lacks_room()) {
      return serve(frame);
    }
    unserved_bytes_ += frame.size();
    unserved_.push_back(std::move(frame));
    return unserved_bytes_ <= max_unacknowledged_bytes && unserved_.size() <= most_unserved;
  }

  bool serve(std::span<const std::byte> frame) {
    ++received_;
    unacknowledged_bytes_ += frame.size();
    if (unacknowledged_bytes_ > max_unacknowledged_bytes / 4) {
      acknowledge();
    }
    const std::function<bool(std::span<const std::byte>)> on_frame = handlers_.on_frame;
    return !on_frame || on_frame(frame);
  }

  /// Serves what waited for room. False where it does not follow the protocol.
  bool serve_waiting(const FramedConnection& connection) {
    bool is_valid = true;
    while (is_valid && connection_.get() == &connection && !unserved_.empty() && !lacks_room()) {
      const Frame frame = std::move(unserved_.front());
      unserved_.pop_front();
      unserved_bytes_ -= frame.size();
      is_valid = serve(frame);
    }
    return is_valid;
  }

  async::Task<std::string> write_all(FramedConnection& connection) {
    Deadline::Clock::time_point last_taken = Deadline::Clock::now();
    for (;;) {
      while (queue_.may_take() && connection.writer.queued_bytes() < batch_bytes) {
        const OutgoingFrame& next = queue_.take();
        static_cast<void>(connection.writer.queue(next.own, next.parts));  // its own bound is far above a batch
      }
      const bool is_valid = serve_waiting(connection);
      if (connection_.get() != &connection || !is_valid) {
        co_return no_protocol;
      }
      if (connection.writer.queued_bytes() > 0) {
        net::IoResult result = connection.writer.try_flush();
        if (result.status == net::IoStatus::timed_out) {
          const std::size_t at_once = result.bytes;
          result = co_await connection.writer.flush(Deadline::after(std::min(options_.send, step)));
          result.bytes += at_once;
        }
        if (result.status == net::IoStatus::closed) {
          co_return result.reason();
        }
        const Deadline::Clock::time_point now = Deadline::Clock::now();
        if (result.bytes > 0) {
          last_taken = now;
        } else if (now - last_taken >= options_.send) {
          co_return "it took nothing for " + duration_text(options_.send);
        }
      } else if (queue_.has_waiting()) {  // until the peer has acknowledged more
        const std::size_t before = queue_.taken_bytes();
        const async::WakeReason ready = co_await to_write_.wait(Deadline::at(last_taken + options_.send));
        if (queue_.taken_bytes() != before) {
          last_taken = Deadline::Clock::now();
        } else if (ready == async::WakeReason::timed_out) {
          co_return "it acknowledged nothing for " + duration_text(options_.send);
        }
      } else if (closing_) {
        connection.tcp.shutdown_write();  // the peer reads all of it, and closes; who does not close is closed
        co_await loop_.sleep_for(linger);
        co_return "it was asked to close";
      } else {
        co_await to_write_.wait(a_day());
        last_taken = Deadline::Clock::now();
      }
    }
  }

  async::EventLoop& loop_;
  SessionOptions options_;
  FrameHandlers handlers_;
  RetransmitQueue queue_;
  std::unique_ptr<FramedConnection> connection_;
  async::AutoResetEvent to_write_;
  Deadline::Clock::time_point last_received_;
  Deadline::Clock::time_point last_heartbeat_;
  std::uint64_t received_ = 0;
  std::size_t unacknowledged_bytes_ = 0;
  FieldWriter heartbeat_;
  std::deque<Frame> unserved_;  ///< frames of the peer that wait for room
  std::size_t unserved_bytes_ = 0;
  bool closing_ = false;
  async::TaskHandle reading_;
  async::TaskHandle writing_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
