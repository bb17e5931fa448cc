#pragma once
/// @file
/// Retransmit queue: frames of one direction of a session, kept until the peer acknowledges them. Pure.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "dtrain/rendezvous/protocol/session_codec.hpp"

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

}  // namespace DTRAIN_NAMESPACE::rendezvous
