#pragma once
/// @file
/// Frames over a Connection.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/net/connection.hpp"
#include "dtrain/net/frame_parser.hpp"

namespace DTRAIN_NAMESPACE::net {

/// How reading or writing a frame ended.
enum class FrameStatus : std::uint8_t {
  ok = 1,
  closed,     ///< at the end of a frame
  cut_short,  ///< the connection ended inside a frame
  timed_out,  ///< what was received so far is kept: reading may go on
  too_long,   ///< the peer announced more than the bound: the stream cannot be followed any more
};

/// A frame that was read, or why there is none.
struct FrameResult {
  FrameStatus status = FrameStatus::ok;
  std::vector<std::byte> payload{};
  std::string reason{};  ///< a clause for a sentence where the status is not ok

  bool ok() const noexcept { return status == FrameStatus::ok; }
};

/// Lifetime: the connection outlives it; neither moves while a task reads. One coroutine reads at a time.
class FrameReader {
 public:
  explicit FrameReader(Connection& connection, std::size_t bound = default_frame_bound) noexcept
      : connection_(&connection), parser_(bound) {}

  /// How many bytes have come, whole frames or not.
  std::uint64_t received_bytes() const noexcept { return received_bytes_; }

  /// From here on frames may be longer: for a peer that has shown who it is.
  void raise_bound(std::size_t bound) noexcept { parser_.raise_bound(bound); }

  /// The next frame.
  async::Task<FrameResult> read_frame(Deadline deadline) {
    FrameResult result;
    while (!try_read_frame(result)) {
      const async::Ready ready = co_await connection_->readable(deadline);
      if (ready == async::Ready::timed_out) {
        end(result, IoResult{IoStatus::timed_out, 0, 0});
        break;
      }
    }
    co_return std::move(result);
  }

  /// The next frame, or the end of them, without waiting; false where nothing more is there. Uses the result's memory
  /// again: heartbeats allocate nothing.
  bool try_read_frame(FrameResult& result) {
    while (!parser_.next(result.payload)) {
      if (parser_.spoilt()) {
        result.status = FrameStatus::too_long;
        result.reason = "the peer announced a frame of " + std::to_string(parser_.refused_length()) +
                        " bytes; at most " + std::to_string(parser_.bound()) + " are taken";
        return true;
      }
      const IoResult io = receive();
      if (io.status == IoStatus::timed_out) {
        return false;
      }
      if (!io.ok()) {
        end(result, io);
        return true;
      }
    }
    return true;
  }

 private:
  void end(FrameResult& result, const IoResult& io) const {
    const bool inside = parser_.buffered() > 0;
    result.status = io.status == IoStatus::timed_out ? FrameStatus::timed_out
                    : inside                         ? FrameStatus::cut_short
                                                     : FrameStatus::closed;
    result.reason = io.reason() + (inside ? " inside a frame" : "");
  }

  /// Moves what has arrived into the parser. The buffer is on the stack, not in the frames of ten thousand coroutines.
  IoResult receive() {
    std::array<std::byte, 16384> buffer;
    const IoResult io = connection_->try_read(buffer).value_or(IoResult{IoStatus::timed_out, 0, 0});
    received_bytes_ += io.bytes;
    parser_.feed(std::span<const std::byte>(buffer).first(io.bytes));
    return io;
  }

  Connection* connection_;
  FrameParser parser_;
  std::uint64_t received_bytes_ = 0;
};

/// Bytes of a frame that it shares with others: they come before its own byte `at`, and are not copied.
struct SharedPart {
  std::size_t at = 0;
  std::shared_ptr<const std::string> bytes;
};

/// Queues frames and writes them together. Lifetime: as FrameReader. One coroutine flushes at a time; others may queue
/// meanwhile, and what they queue goes with the same flush.
class FrameWriter {
 public:
  static constexpr std::size_t default_queue_bound = std::size_t{64} << 20;

  explicit FrameWriter(Connection& connection, std::size_t bound = default_frame_bound,
                       std::size_t queue_bound = default_queue_bound) noexcept
      : connection_(&connection), bound_(bound), queue_bound_(queue_bound) {}

  /// Appends a frame. False, with nothing appended, where more than the queue's bound would wait: the peer does not
  /// read.
  /// @param parts the rest of the frame, ascending
  /// @throws Error (limit) for a frame above its bound
  [[nodiscard]] bool queue(std::span<const std::byte> payload, std::span<const SharedPart> parts = {}) {
    std::size_t size = payload.size();
    for (const SharedPart& part : parts) {
      size += part.bytes->size();
    }
    if (size > bound_) {
      throw Error(Errc::limit, "sending a message of " + std::to_string(size) + " bytes; at most " +
                                   std::to_string(bound_) + " are possible");
    }
    if (queued_bytes() + frame_header_bytes + size > queue_bound_) {
      return false;
    }
    for (std::size_t i = 0; i < frame_header_bytes; ++i) {
      queue_.push_back(static_cast<std::byte>((size >> (8 * i)) & 0xff));
    }
    for (const SharedPart& part : parts) {
      queue_parts_.push_back({queue_.size() + part.at, part.bytes});
    }
    queue_.insert(queue_.end(), payload.begin(), payload.end());
    queued_bytes_ += frame_header_bytes + size;
    return true;
  }

  /// Writes what is queued. After a timeout the rest stays queued, and the next flush goes on with it.
  async::Task<IoResult> flush(Deadline deadline) {
    IoResult total = try_flush();
    while (total.status == IoStatus::timed_out) {
      const async::Ready ready = co_await connection_->writable(deadline);
      if (ready == async::Ready::timed_out) {
        break;
      }
      const IoResult more = try_flush();
      total = IoResult{more.status, total.bytes + more.bytes, more.error};
    }
    co_return total;
  }

  /// Writes what goes without waiting: timed_out where some of it does not. Allocates nothing.
  IoResult try_flush() {
    IoResult total;
    while (queued_bytes() > 0) {
      if (written_ == writing_.size() && parts_.empty()) {
        writing_.clear();
        written_ = 0;
        writing_.swap(queue_);
        parts_.swap(queue_parts_);
        std::reverse(parts_.begin(), parts_.end());
      }
      const IoResult io = connection_->try_write(next_piece()).value_or(IoResult{IoStatus::timed_out, 0, 0});
      take(io.bytes);
      total.bytes += io.bytes;
      if (!io.ok()) {
        total.status = io.status;
        total.error = io.error;
        break;
      }
    }
    return total;
  }

  /// queue and flush. @throws Error (limit) also where the queue is full
  async::Task<IoResult> write_frame(std::span<const std::byte> payload, Deadline deadline) {
    if (!queue(payload)) {
      throw Error(Errc::limit, "sending a message: " + std::to_string(queued_bytes()) + " bytes wait for a peer that " +
                                   "does not read");
    }
    const IoResult result = co_await flush(deadline);
    co_return result;
  }

  std::size_t queued_bytes() const noexcept { return queued_bytes_; }

 private:
  /// What can be written in one go, of what is being written.
  std::span<const std::byte> next_piece() const noexcept {
    if (parts_.empty()) {
      return std::span<const std::byte>(writing_).subspan(written_);
    }
    const SharedPart& part = parts_.back();
    return written_ == part.at ? std::as_bytes(std::span(*part.bytes)).subspan(written_of_part_)
                               : std::span<const std::byte>(writing_).first(part.at).subspan(written_);
  }

  /// So many bytes of next_piece() have been written.
  void take(std::size_t bytes) noexcept {
    queued_bytes_ -= bytes;
    if (parts_.empty() || written_ != parts_.back().at) {
      written_ += bytes;
      return;
    }
    written_of_part_ += bytes;
    if (written_of_part_ == parts_.back().bytes->size()) {
      parts_.pop_back();
      written_of_part_ = 0;
    }
  }

  Connection* connection_;
  std::size_t bound_;
  std::size_t queue_bound_;
  std::vector<std::byte> queue_;         ///< what waits for the next write
  std::vector<SharedPart> queue_parts_;  ///< and what comes between its bytes
  std::vector<std::byte> writing_;       ///< what is being written, from written_ on
  std::vector<SharedPart> parts_;        ///< and what comes between its bytes, the next one last
  std::size_t written_ = 0;
  std::size_t written_of_part_ = 0;
  std::size_t queued_bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::net
