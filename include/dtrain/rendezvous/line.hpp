#pragma once
/// @file
/// rendezvous::Line: one side of a session, which outlives the connections that carry it.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "dtrain/async/auto_reset_event.hpp"
#include "dtrain/async/spawned.hpp"
#include "dtrain/core/seconds_text.hpp"
#include "dtrain/rendezvous/codec.hpp"
#include "dtrain/rendezvous/link.hpp"
#include "dtrain/rendezvous/outbox.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Bounds of one end of a session.
struct LineOptions {
  std::size_t outgoing_bytes = std::size_t{64} << 20;  ///< that may wait for a peer that does not read
  std::chrono::milliseconds send{60000};               ///< for a peer that takes nothing
  bool is_store = false;  ///< answers heartbeats, and reads no further questions while many answers wait
};

/// Numbers, sends, keeps and receives the frames of a session. Lifetime: close() before the last owner lets go; the
/// loop outlives it. Threads: the loop's. Its handlers may close it.
class Line : public std::enable_shared_from_this<Line> {
 public:
  struct Handlers {
    /// A frame of the session has come. False where it does not follow the protocol: the connection ends.
    std::function<bool(std::span<const std::byte>)> on_frame;
    /// The connection has ended, and no other is attached. @param how a clause
    std::function<void(const std::string& how)> on_end;
  };

  Line(async::EventLoop& loop, const LineOptions& options, Handlers handlers)
      : loop_(loop),
        options_(options),
        handlers_(std::move(handlers)),
        outbox_(options.outgoing_bytes, kept_bytes),
        to_write_(loop),
        taken_(loop),
        last_heard_(Deadline::Clock::now()) {}
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line() = default;

  /// Goes on over this connection, instead of any that it has. What the link's writer holds already goes first.
  /// @param has how many frames the peer has. False where it cannot go on from there: then nothing is changed
  bool attach(std::unique_ptr<Link> link, std::uint64_t has) {
    if (!outbox_.rewind(has)) {
      return false;
    }
    detach();
    link_ = std::move(link);
    last_heard_ = Deadline::Clock::now();
    reading_ = loop_.spawn(run(shared_from_this(), &Line::read_all));
    writing_ = loop_.spawn(run(shared_from_this(), &Line::write_all));
    return true;
  }

  bool attached() const noexcept { return link_ != nullptr; }

  /// False where the peer leaves too much unread.
  [[nodiscard]] bool send(Frame frame) {
    to_write_.set();
    return outbox_.push(std::move(frame));
  }

  /// Tells the peer how many frames have come; keeps a connection alive. No effect without one, nor where so much is
  /// under way that the peer hears anyway.
  void beat() {
    if (link_ && link_->writer.queued_bytes() < batch_bytes &&
        link_->writer.queue(encode(Heartbeat{received_}, heartbeat_))) {
      unacknowledged_bytes_ = 0;
      to_write_.set();
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
  Deadline::Clock::time_point last_heard() const noexcept { return last_heard_; }
  void forgive_silence() noexcept { last_heard_ = Deadline::Clock::now(); }
  std::size_t waiting_bytes() const noexcept { return outbox_.waiting_bytes(); }

 private:
  static constexpr std::size_t kept_bytes = std::size_t{4} << 20;
  static constexpr std::size_t batch_bytes = std::size_t{1} << 20;
  static constexpr std::size_t acknowledged_every = std::size_t{1} << 20;
  static constexpr std::chrono::milliseconds linger{1000};

  static constexpr std::chrono::milliseconds step{100};  ///< how often a peer that takes little is looked after

  static Deadline a_day() { return Deadline::after(std::chrono::hours(24)); }

  bool lacks_room() const noexcept {
    return options_.is_store && outbox_.waiting_bytes() > options_.outgoing_bytes / 16;
  }

  /// Waits while many frames wait to be sent, so that a rank reads answers before it asks for more. On one side only:
  /// two that waited so for each other would do so for good. A peer that is not read is alive while it takes bytes.
  async::Task<void> room() {
    while (lacks_room()) {
      is_crowded_ = true;
      co_await taken_.wait(a_day());
    }
    is_crowded_ = false;
  }

  /// Ends both directions and the connection.
  void detach() noexcept {
    reading_.cancel();
    writing_.cancel();
    link_.reset();
    taken_.set();
  }

  /// Runs one direction. Its end, or its exception, is the end of the connection.
  static async::Task<void> run(std::shared_ptr<Line> self, async::Task<std::string> (Line::*direction)(Link&)) {
    const Link* const link = self->link_.get();
    std::string how;
    try {
      how = co_await ((*self).*direction)(*self->link_);
    } catch (const std::exception& error) {
      how = error.what();
    }
    if (self->link_.get() == link) {
      self->detach();
      const std::function<void(const std::string&)> on_end = self->handlers_.on_end;
      if (on_end) {
        on_end(how);
      }
    }
  }

  async::Task<std::string> read_all(Link& link) {
    net::FrameResult frame;
    is_crowded_ = false;  // an earlier connection may have ended while it waited for room
    for (;;) {
      if (lacks_room()) {
        co_await room();
      }
      if (!link.reader.try_read_frame(frame)) {
        co_await link.connection.readable(a_day());
        continue;
      }
      if (!frame.ok()) {
        co_return frame.reason;
      }
      last_heard_ = Deadline::Clock::now();
      const bool understood = hear(frame.payload);
      if (link_.get() != &link) {
        co_return std::string();
      }
      if (!understood) {
        co_return "it sent bytes that do not follow the protocol";
      }
    }
  }

  bool hear(std::span<const std::byte> frame) {
    if (const std::optional<std::uint64_t> has = decode_heartbeat(frame)) {
      if (options_.is_store) {
        beat();
      }
      return outbox_.acknowledge(*has);
    }
    ++received_;
    unacknowledged_bytes_ += frame.size();
    if (unacknowledged_bytes_ > acknowledged_every) {
      beat();
    }
    const std::function<bool(std::span<const std::byte>)> on_frame = handlers_.on_frame;
    return !on_frame || on_frame(frame);
  }

  async::Task<std::string> write_all(Link& link) {
    Deadline::Clock::time_point last_taken = Deadline::Clock::now();
    for (;;) {
      while (outbox_.has_waiting() && link.writer.queued_bytes() < batch_bytes) {
        static_cast<void>(link.writer.queue(outbox_.take()));  // its own bound is far above a batch
      }
      if (link.writer.queued_bytes() > 0) {
        net::IoResult result = link.writer.try_flush();
        if (result.status == net::IoStatus::timed_out) {
          const std::size_t at_once = result.bytes;
          result = co_await link.writer.flush(Deadline::after(std::min(options_.send, step)));
          result.bytes += at_once;
        }
        taken_.set();
        if (result.status == net::IoStatus::closed) {
          co_return result.reason();
        }
        const Deadline::Clock::time_point now = Deadline::Clock::now();
        if (result.bytes > 0) {
          last_taken = now;
          last_heard_ = is_crowded_ ? now : last_heard_;
        } else if (now - last_taken >= options_.send) {
          co_return "it took nothing for " + seconds_text(options_.send);
        }
      } else if (closing_) {
        link.connection.shutdown_write();  // the peer reads all of it, and closes; who does not close is closed
        co_await loop_.sleep_for(linger);
        co_return "it was told to close";
      } else {
        co_await to_write_.wait(a_day());
        last_taken = Deadline::Clock::now();
      }
    }
  }

  async::EventLoop& loop_;
  LineOptions options_;
  Handlers handlers_;
  Outbox outbox_;
  std::unique_ptr<Link> link_;
  async::AutoResetEvent to_write_;
  async::AutoResetEvent taken_;
  Deadline::Clock::time_point last_heard_;
  std::uint64_t received_ = 0;
  std::size_t unacknowledged_bytes_ = 0;
  FieldWriter heartbeat_;
  bool is_crowded_ = false;  ///< too much waits to be sent, so nothing is read
  bool closing_ = false;
  async::Spawned reading_;
  async::Spawned writing_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
