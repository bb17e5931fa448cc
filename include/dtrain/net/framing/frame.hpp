#pragma once
/// @file
/// FrameReader, FrameWriter: length-prefixed frames over a net::Connection, of a bounded length. FrameParser: splits a
/// byte stream into frames.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/connection.hpp"

namespace DTRAIN_NAMESPACE::net {

/// A frame is its payload's length, a little-endian u32, and the payload.
inline constexpr std::size_t frame_header_bytes = 4;
inline constexpr std::size_t default_frame_bound = std::size_t{1} << 20;

/// Takes bytes in chunks of any size and returns whole frames. Its memory holds only received bytes that were not
/// returned yet, so a large announced length costs nothing. After a length above the bound the stream stays malformed.
class FrameParser {
 public:
  /// @param bound of a frame's payload, in bytes
  explicit FrameParser(std::size_t bound = default_frame_bound) noexcept : bound_(bound) {}

  /// Raises the bound of later frames. A malformed stream stays malformed.
  void raise_bound(std::size_t bound) noexcept { bound_ = bound; }

  /// Appends received bytes; ignores them once the stream is malformed.
  void feed(std::span<const std::byte> bytes) {
    if (malformed()) {
      return;
    }
    if (taken_ > 0 && taken_ >= buffer_.size() / 2) {
      buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(taken_));
      taken_ = 0;
    }
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    check_length();
  }

  /// The next whole frame's payload, if there is one.
  std::optional<std::vector<std::byte>> next() {
    std::vector<std::byte> frame;
    return next(frame) ? std::optional(std::move(frame)) : std::nullopt;
  }

  /// next() into reused memory: small frames allocate nothing.
  bool next(std::vector<std::byte>& frame) {
    if (malformed() || buffered() < frame_header_bytes || buffered() - frame_header_bytes < length()) {
      return false;
    }
    const std::span<const std::byte> payload =
        std::span<const std::byte>(buffer_).subspan(taken_ + frame_header_bytes, length());
    if (frame.capacity() > kept_capacity) {
      std::vector<std::byte>().swap(frame);
    }
    frame.assign(payload.begin(), payload.end());
    taken_ += frame_header_bytes + frame.size();
    if (taken_ == buffer_.size()) {
      buffer_.clear();
      taken_ = 0;
      if (buffer_.capacity() > kept_capacity) {
        buffer_.shrink_to_fit();
      }
    }
    check_length();
    return true;
  }

  /// Whether a length above the bound has been seen, and which.
  bool malformed() const noexcept { return refused_length_ != 0; }
  std::uint32_t refused_length() const noexcept { return refused_length_; }

  /// Received bytes not returned yet; nonzero at the end of the stream means a truncated frame.
  std::size_t buffered() const noexcept { return buffer_.size() - taken_; }
  std::size_t bound() const noexcept { return bound_; }

 private:
  static constexpr std::size_t kept_capacity = std::size_t{64} << 10;

  std::uint32_t length() const noexcept {
    std::uint32_t value = 0;
    for (std::size_t i = frame_header_bytes; i > 0; --i) {
      value = (value << 8) | std::to_integer<std::uint32_t>(buffer_[taken_ + i - 1]);
    }
    return value;
  }

  void check_length() {
    if (buffered() >= frame_header_bytes && length() > bound_) {
      refused_length_ = length();
      std::vector<std::byte>().swap(buffer_);
      taken_ = 0;
    }
  }

  std::size_t bound_;
  std::vector<std::byte> buffer_;
  std::size_t taken_ = 0;             ///< bytes at the buffer's beginning that were returned
  std::uint32_t refused_length_ = 0;  ///< 0 while the stream is well formed
};

/// How reading or writing a frame ended.
enum class FrameStatus : std::uint8_t {
  ok = 1,
  closed,     ///< the connection ended between frames
  truncated,  ///< the connection ended inside a frame
  timed_out,  ///< received bytes are kept: the next read continues
  too_long,   ///< the peer announced more than the bound: the stream is malformed from here on
};

/// A frame, or the reason for its absence.
struct FrameResult {
  FrameStatus status = FrameStatus::ok;
  std::vector<std::byte> payload{};
  std::string reason{};  ///< a clause for an error message if the status is not ok

  bool ok() const noexcept { return status == FrameStatus::ok; }
};

/// Reads frames. Lifetime: the connection outlives it; neither moves while a task reads. One coroutine reads at a time.
class FrameReader {
 public:
  explicit FrameReader(Connection& connection, std::size_t bound = default_frame_bound) noexcept
      : connection_(&connection), parser_(bound) {}

  /// Number of received bytes, in whole frames or not.
  std::uint64_t received_bytes() const noexcept { return received_bytes_; }

  /// Raises the bound of later frames: for a peer that has authenticated itself.
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

  /// Reads the next frame, or the end of the stream, without waiting; false if neither has arrived. Reuses the memory
  /// of `result`, so heartbeats allocate nothing.
  bool try_read_frame(FrameResult& result) {
    while (!parser_.next(result.payload)) {
      if (parser_.malformed()) {
        result.status = FrameStatus::too_long;
        result.reason = format_text("the peer announced a frame of {} bytes; at most {} are taken",
                                    {parser_.refused_length(), parser_.bound()});
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

  /// Moves received bytes into the parser. The buffer is on the stack, not in the frames of ten thousand coroutines.
  IoResult receive() {
    std::array<std::byte, 16384> buffer;
    const IoResult io = connection_->try_read(buffer);
    received_bytes_ += io.bytes;
    parser_.feed(std::span<const std::byte>(buffer).first(io.bytes));
    return io;
  }

  Connection* connection_;
  FrameParser parser_;
  std::uint64_t received_bytes_ = 0;
};

/// Bytes that several frames share: inserted before the frame's own byte `at`, not copied. With {1, "XY"} the
/// payload "ab" becomes "aXYb".
struct SharedBytes {
  std::size_t at = 0;
  std::shared_ptr<const std::string> bytes;
};

/// Queues frames and writes them together. Lifetime: as FrameReader. One coroutine flushes at a time. Other coroutines
/// may queue meanwhile; the same flush writes their frames.
class FrameWriter {
 public:
  static constexpr std::size_t default_queue_bound = std::size_t{64} << 20;

  explicit FrameWriter(Connection& connection, std::size_t bound = default_frame_bound,
                       std::size_t queue_bound = default_queue_bound) noexcept
      : connection_(&connection), bound_(bound), queue_bound_(queue_bound) {}

  /// Appends a frame. False, with nothing appended, if the queue would exceed its bound because the peer does not read.
  /// @param shared further bytes of the frame, ascending by `at`
  /// @throws Error (limit) for a frame above its bound
  [[nodiscard]] bool queue(std::span<const std::byte> payload, std::span<const SharedBytes> shared = {}) {
    std::size_t size = payload.size();
    for (const SharedBytes& shared_bytes : shared) {
      size += shared_bytes.bytes->size();
    }
    if (size > bound_) {
      throw_error(Errc::limit, "sending a message of {} bytes; at most {} are possible", {size, bound_});
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

  /// Writes the queued bytes. After a timeout the rest stays queued for the next flush.
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

  /// Writes without waiting; timed_out if some bytes are left. Allocates nothing.
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
      const IoResult io = connection_->try_write(next_write());
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

  /// Calls queue() and flush(). @throws Error (limit) also if the queue is full
  async::Task<IoResult> write_frame(std::span<const std::byte> payload, Deadline deadline) {
    if (!queue(payload)) {
      throw_error(Errc::limit, "sending a message: {} bytes wait for a peer that does not read", {queued_bytes()});
    }
    const IoResult result = co_await flush(deadline);
    co_return result;
  }

  std::size_t queued_bytes() const noexcept { return queued_bytes_; }

 private:
  /// The next contiguous bytes to write.
  std::span<const std::byte> next_write() const noexcept {
    if (shared_.empty()) {
      return std::span<const std::byte>(writing_).subspan(written_);
    }
    const SharedBytes& shared_bytes = shared_.back();
    return written_ == shared_bytes.at ? std::as_bytes(std::span(*shared_bytes.bytes)).subspan(written_of_shared_)
                                       : std::span<const std::byte>(writing_).first(shared_bytes.at).subspan(written_);
  }

  /// Records that `bytes` bytes of next_write() are written.
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
  std::vector<std::byte> queue_;           ///< bytes of the next write
  std::vector<SharedBytes> queue_shared_;  ///< shared bytes to insert into queue_
  std::vector<std::byte> writing_;         ///< bytes of the current write, from written_ on
  std::vector<SharedBytes> shared_;        ///< shared bytes to insert into writing_, the next one last
  std::size_t written_ = 0;
  std::size_t written_of_shared_ = 0;
  std::size_t queued_bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::net
