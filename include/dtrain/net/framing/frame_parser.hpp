#pragma once
/// @file
/// FrameParser: splits a byte stream into frames.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::net {

/// A frame is its payload's length, a little-endian u32, and the payload.
inline constexpr std::size_t frame_header_bytes = 4;
/// Default bound of a frame's payload.
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
    if (malformed_) {
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

  /// The same into reused memory: small frames allocate nothing.
  bool next(std::vector<std::byte>& frame) {
    if (malformed_ || buffered() < frame_header_bytes || buffered() - frame_header_bytes < length()) {
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
  bool malformed() const noexcept { return malformed_; }
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
      malformed_ = true;
      refused_length_ = length();
      std::vector<std::byte>().swap(buffer_);
      taken_ = 0;
    }
  }

  std::size_t bound_;
  std::vector<std::byte> buffer_;
  std::size_t taken_ = 0;  ///< bytes at the buffer's beginning that were returned
  bool malformed_ = false;
  std::uint32_t refused_length_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::net
