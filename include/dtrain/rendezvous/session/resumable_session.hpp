#pragma once
/// @file
/// rendezvous::ResumableSession: one side of a session, which outlives its connections; RetransmitQueue keeps the
/// frames of one direction until the peer acknowledges them.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/async/task/task_handle.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/protocol/session_codec.hpp"
#include "dtrain/rendezvous/session/framed_connection.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Frames are numbered from 0 in the order of push(). A frame waits until take(); then it is kept, to be sent again on
/// a new connection, until the peer acknowledges it. may_take() bounds the kept bytes, so no frame is ever dropped.
class RetransmitQueue {
 public:
  /// @param most bytes that may wait
  /// @param kept bytes that may be taken and not acknowledged
  RetransmitQueue(std::size_t most, std::size_t kept) noexcept : most_(most), kept_(kept) {}

  /// @returns false, with nothing appended, if more than `most` bytes would wait: the peer does not read
  [[nodiscard]] bool push(OutgoingFrame frame) {
    if (waiting_bytes_ + frame.size() > most_) {
      return false;
    }
    waiting_bytes_ += frame.size();
    frames_.push_back(std::move(frame));
    return true;
  }

  bool has_waiting() const noexcept { return taken_ < frames_.size(); }
  std::size_t waiting_bytes() const noexcept { return waiting_bytes_; }

  /// Whether a frame waits and fits beside the unacknowledged ones. A single frame always fits.
  bool may_take() const noexcept {
    return has_waiting() && (taken_ == 0 || taken_bytes_ + frames_[taken_].size() <= kept_);
  }
  std::size_t taken_bytes() const noexcept { return taken_bytes_; }

  /// The next waiting frame, which counts as sent from now on. It stays valid until the next call. @pre may_take()
  const OutgoingFrame& take() {
    const OutgoingFrame& frame = frames_[taken_++];
    waiting_bytes_ -= frame.size();
    taken_bytes_ += frame.size();
    return frame;
  }

  /// Drops the frames before number `count`, which the peer has. @returns false if fewer frames are taken
  bool acknowledge(std::uint64_t count) noexcept {
    if (count > first_ + taken_) {
      return false;
    }
    while (first_ < count) {
      drop_first();
    }
    return true;
  }

  /// Makes all frames from number `count` on wait again. @returns false, with nothing changed, if the peer lacks frames
  /// that it had acknowledged, or claims frames that were never sent
  bool rewind(std::uint64_t count) noexcept {
    if (count < first_ || !acknowledge(count)) {
      return false;
    }
    waiting_bytes_ += std::exchange(taken_bytes_, 0);
    taken_ = 0;
    return true;
  }

 private:
  void drop_first() noexcept {
    taken_bytes_ -= frames_.front().size();
    frames_.pop_front();
    --taken_;
    ++first_;
  }

  std::size_t most_;
  std::size_t kept_;
  std::deque<OutgoingFrame> frames_;  ///< those that were taken, then those that wait
  std::size_t taken_ = 0;
  std::uint64_t first_ = 0;  ///< the number of frames_.front()
  std::size_t taken_bytes_ = 0;
  std::size_t waiting_bytes_ = 0;
};

/// Bounds of one end of a session.
struct SessionOptions {
  std::size_t outgoing_bytes = std::size_t{64} << 20;  ///< that may wait to be sent
  std::chrono::milliseconds send{60000};               ///< how long a peer may take no byte, or acknowledge none
  bool is_server = false;  ///< answers heartbeats, and serves no further requests while many responses wait
  std::chrono::milliseconds answer{500};  ///< interval of a server's heartbeats while a long frame arrives
};

/// What a session calls. Both functions may close the session and destroy the handler.
class SessionHandler {
 public:
  /// A session frame was received. @returns false if it does not follow the protocol: the connection then ends
  virtual bool on_frame(std::span<const std::byte> frame) = 0;
  /// The connection has ended, and no other is attached. @param how the reason, a clause
  virtual void on_disconnected(const std::string& how) = 0;

 protected:
  ~SessionHandler() = default;
};

/// Numbers, sends, retains and receives the frames of a session. Lifetime: call close() before releasing the last
/// owner's reference; the loop outlives it. Threads: the loop's.
class ResumableSession : public std::enable_shared_from_this<ResumableSession> {
 public:
  ResumableSession(async::EventLoop& loop, const SessionOptions& options, SessionHandler& handler)
      : loop_(loop),
        options_(options),
        handler_(&handler),
        queue_(options.outgoing_bytes, max_unacknowledged_bytes),
        to_write_(loop) {}
  ResumableSession(const ResumableSession&) = delete;
  ResumableSession& operator=(const ResumableSession&) = delete;

  /// Continues the session on this connection instead of an earlier one. Bytes that its writer has queued go first.
  /// @param has number of frames that the peer has
  /// @returns false, with nothing changed, if the session cannot continue from there
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

  /// @returns false, without sending, if more than SessionOptions::outgoing_bytes would wait
  [[nodiscard]] bool send(OutgoingFrame frame) {
    to_write_.set();
    return queue_.push(std::move(frame));
  }

  /// Acknowledges the received frames, which keeps the connection alive. No effect without one, or with 1 MiB queued.
  void send_heartbeat() {
    if (connection_ && connection_->writer.queued_bytes() < batch_bytes) {
      acknowledge();
    }
  }

  /// Ends the connection once all frames are sent. Without a connection, no effect before the next attach().
  void close_after_sending() {
    closing_ = true;
    to_write_.set();
  }

  /// Ends the session; the handler is not called any more.
  void close() noexcept {
    handler_ = nullptr;
    detach();
  }

  std::uint64_t received() const noexcept { return received_; }
  Deadline::Clock::time_point last_received() const noexcept { return last_received_; }
  /// Takes from the peer's silence a time in which this process itself did not run.
  void excuse_silence(auto time) noexcept { last_received_ = std::min(last_received_ + time, Deadline::Clock::now()); }
  std::size_t waiting_bytes() const noexcept { return queue_.waiting_bytes(); }

 private:
  static constexpr std::size_t batch_bytes = std::size_t{1} << 20;
  static constexpr std::size_t most_unserved = std::size_t{1} << 16;  ///< frames; a rank has far fewer requests open
  static constexpr std::chrono::milliseconds linger{1000};
  static constexpr const char* no_protocol = "it sent bytes that do not follow the protocol";
  static constexpr std::chrono::milliseconds step{100};  ///< interval at which write_all() checks a slow peer

  /// Whether a server serves no more requests until the rank has read responses. Only the server side does this: two
  /// sides that wait for each other would deadlock.
  bool lacks_room() const noexcept {
    return options_.is_server && queue_.waiting_bytes() > options_.outgoing_bytes / 16;
  }

  void acknowledge() {
    Heartbeat message{received_};
    if (connection_ && connection_->writer.queue(encode(message, heartbeat_))) {
      unacknowledged_bytes_ = 0;
      last_heartbeat_ = Deadline::Clock::now();
      to_write_.set();
    }
  }

  /// Stops reading and writing, and closes the connection.
  DTRAIN_NOT_INLINED void detach() noexcept {
    reading_.cancel();
    writing_.cancel();
    connection_.reset();
    unserved_.clear();  // not acknowledged: the peer sends them again
    unserved_bytes_ = 0;
  }

  /// Runs read_all or write_all. When it returns or throws, the connection ends.
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
      if (self->handler_ != nullptr) {
        self->handler_->on_disconnected(how);
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
        co_await connection.tcp.readable(Deadline::unbounded("the session watches the peer and ends the connection"));
        continue;
      }
      if (!frame.ok()) {
        co_return frame.reason;
      }
      const bool is_valid = receive_frame(frame.payload);
      if (connection_.get() != &connection || !is_valid) {
        co_return no_protocol;
      }
    }
  }

  /// Every received byte shows that the peer is alive, since one frame may take longer than the liveness time. A server
  /// also sends heartbeats while a long frame arrives, since the sender's own heartbeats are queued behind that frame.
  void note_bytes(bool are_whole) {
    last_received_ = Deadline::Clock::now();
    if (options_.is_server && !are_whole && last_received_ - last_heartbeat_ >= options_.answer) {
      send_heartbeat();
    }
  }

  /// Serves a frame, or keeps it until lacks_room() is false. Kept frames are bounded, because they are unacknowledged.
  /// Heartbeats are never kept: they acknowledge responses, which makes room. @returns false for a protocol violation
  bool receive_frame(Frame& frame) {
    if (frame.empty()) {
      return false;  // no message is empty
    }
    if (frame.front() == static_cast<std::byte>(MessageKind::heartbeat)) {
      const std::optional<std::uint64_t> has = decode_heartbeat(frame);
      if (!has || !queue_.acknowledge(*has)) {
        return false;
      }
      if (options_.is_server) {
        send_heartbeat();
      }
      if (queue_.has_waiting()) {
        to_write_.set();
      }
      return true;
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
    return handler_ == nullptr || handler_->on_frame(frame);
  }

  /// Serves frames that waited for room. @returns false for a protocol violation
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
          co_return format_text("it took nothing for {}", {duration_text(options_.send)});
        }
      } else if (queue_.has_waiting()) {  // wait until the peer has acknowledged more
        const std::size_t before = queue_.taken_bytes();
        const async::WakeReason ready = co_await to_write_.wait(Deadline::at(last_taken + options_.send));
        if (queue_.taken_bytes() != before) {
          last_taken = Deadline::Clock::now();
        } else if (ready == async::WakeReason::timed_out) {
          co_return format_text("it acknowledged nothing for {}", {duration_text(options_.send)});
        }
      } else if (closing_) {
        connection.tcp.shutdown_write();  // the peer reads all bytes and closes, or is closed after `linger`
        co_await loop_.sleep_for(linger);
        co_return "it was asked to close";
      } else {
        co_await to_write_.wait(Deadline::unbounded("the end of the connection destroys this task"));
        last_taken = Deadline::Clock::now();
      }
    }
  }

  async::EventLoop& loop_;
  SessionOptions options_;
  SessionHandler* handler_;  ///< null once closed
  RetransmitQueue queue_;
  std::unique_ptr<FramedConnection> connection_;
  async::AutoResetEvent to_write_;
  Deadline::Clock::time_point last_received_ = Deadline::Clock::now();
  Deadline::Clock::time_point last_heartbeat_;
  std::uint64_t received_ = 0;
  std::size_t unacknowledged_bytes_ = 0;
  Serializer heartbeat_;
  std::deque<Frame> unserved_;  ///< frames of the peer that wait for room
  std::size_t unserved_bytes_ = 0;
  bool closing_ = false;
  async::TaskHandle reading_;
  async::TaskHandle writing_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
