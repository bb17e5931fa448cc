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
#include "dtrain/net/framing/frame_parser.hpp"

namespace DTRAIN_NAMESPACE::net {

/// How reading or writing a frame ended.
enum class FrameStatus : std::uint8_t {
  ok = 1,
  closed,     ///< at the end of a frame
  truncated,  ///< the connection ended inside a frame
  timed_out,  ///< what was received so far is kept: reading may go on
  too_long,   ///< the peer announced more than the bound: the stream is malformed from here on
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
      const async::WakeReason ready = co_await connection_->readable(deadline);
      if (ready == async::WakeReason::timed_out) {
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
      if (parser_.malformed()) {
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
                    : inside                         ? FrameStatus::truncated
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

/// Bytes of a frame that are shared with other frames: they come before its own byte `at`, and are not copied.
struct SharedBytes {
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
  /// @param shared the rest of the frame, ascending
  /// @throws Error (limit) for a frame above its bound
  [[nodiscard]] bool queue(std::span<const std::byte> payload, std::span<const SharedBytes> shared = {}) {
    std::size_t size = payload.size();
    for (const SharedBytes& shared_bytes : shared) {
      size += shared_bytes.bytes->size();
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
    for (const SharedBytes& shared_bytes : shared) {
      queue_shared_.push_back({queue_.size() + shared_bytes.at, shared_bytes.bytes});
    }
    queue_.insert(queue_.end(), payload.begin(), payload.end());
    queued_bytes_ += frame_header_bytes + size;
    return true;
  }

  /// Writes what is queued. After a timeout the rest stays queued, and the next flush goes on with it.
  async::Task<IoResult> flush(Deadline deadline) {
    IoResult total = try_flush();
    while (total.status == IoStatus::timed_out) {
      const async::WakeReason ready = co_await connection_->writable(deadline);
      if (ready == async::WakeReason::timed_out) {
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
      if (written_ == writing_.size() && shared_.empty()) {
        writing_.clear();
        written_ = 0;
        writing_.swap(queue_);
        shared_.swap(queue_shared_);
        std::reverse(shared_.begin(), shared_.end());
      }
      const IoResult io = connection_->try_write(next_write()).value_or(IoResult{IoStatus::timed_out, 0, 0});
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
  std::span<const std::byte> next_write() const noexcept {
    if (shared_.empty()) {
      return std::span<const std::byte>(writing_).subspan(written_);
    }
    const SharedBytes& shared_bytes = shared_.back();
    return written_ == shared_bytes.at ? std::as_bytes(std::span(*shared_bytes.bytes)).subspan(written_of_shared_)
                                       : std::span<const std::byte>(writing_).first(shared_bytes.at).subspan(written_);
  }

  /// So many bytes of next_write() have been written.
  void take(std::size_t bytes) noexcept {
    queued_bytes_ -= bytes;
    if (shared_.empty() || written_ != shared_.back().at) {
      written_ += bytes;
      return;
    }
    written_of_shared_ += bytes;
    if (written_of_shared_ == shared_.back().bytes->size()) {
      shared_.pop_back();
      written_of_shared_ = 0;
    }
  }

  Connection* connection_;
  std::size_t bound_;
  std::size_t queue_bound_;
  std::vector<std::byte> queue_;           ///< what waits for the next write
  std::vector<SharedBytes> queue_shared_;  ///< and what comes between its bytes
  std::vector<std::byte> writing_;         ///< what is being written, from written_ on
  std::vector<SharedBytes> shared_;        ///< and what comes between its bytes, the next one last
  std::size_t written_ = 0;
  std::size_t written_of_shared_ = 0;
  std::size_t queued_bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::net
