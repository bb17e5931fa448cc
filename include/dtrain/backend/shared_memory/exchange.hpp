#pragma once
/// @file
/// The course of a collective that shows long buffers to the other ranks: in place in an arena, or chunk by chunk.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/slice.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Between pieces of this size long work looks whether it was aborted.
inline constexpr std::size_t piece_bytes = std::size_t{256} << 10;

/// Elements divided into chunks that fit a staging area, evenly and in whole cache lines.
class Chunks {
 public:
  /// @param most elements that fit, a multiple of 64 or less than that
  Chunks(std::size_t count, std::size_t most) noexcept : count_(count) {
    const std::size_t needed = (count + most - 1) / most;
    length_ = needed <= 1 ? count : std::min(most, slice_length(count, static_cast<int>(needed)));
  }

  std::size_t number() const noexcept { return length_ == 0 ? 0 : (count_ + length_ - 1) / length_; }
  std::size_t begin(std::size_t chunk) const noexcept { return chunk * length_; }
  std::size_t length(std::size_t chunk) const noexcept { return std::min(length_, count_ - begin(chunk)); }

 private:
  std::size_t count_;
  std::size_t length_;
};

/// Whether every rank's buffer of the present operation lies in the same allocation. The same answer on every rank.
/// Called after the operation's first meeting.
inline bool all_in_one_arena(const Channel& channel) noexcept {
  const std::uint64_t allocation = channel.operation_of(0).allocation;
  for (int rank = 1; rank < channel.size(); ++rank) {
    if (channel.operation_of(rank).allocation != allocation) {
      return false;
    }
  }
  return allocation != 0;
}

/// Whether any rank's does.
inline bool any_in_arena(const Channel& channel) noexcept {
  for (int rank = 0; rank < channel.size(); ++rank) {
    if (channel.operation_of(rank).allocation != 0) {
      return true;
    }
  }
  return false;
}

/// How a long exchange ended, on this rank.
enum class Exchanged { in_place, staged, failed };

/// In place: `direct()` between two meetings. Staged: one meeting for each chunk; between two of them a rank takes one
/// chunk (`take(chunk)`) and shows the next (`show(chunk)`), which it may write where chunk - 2 was: everybody took
/// that before the last meeting. Which of the two is known only after the first meeting; a rank whose buffer is in no
/// arena knows before that it is staged, and saves the others a meeting.
template <class Direct, class Show, class Take>
Exchanged exchange(Channel& channel, const Operation& operation, std::size_t chunks, std::size_t staged_bytes,
                   Direct direct, Show show, Take take) noexcept {
  StagingMeter& meter = channel.staging();
  meter.begin(staged_bytes);
  const auto show_first = [&]() noexcept {
    show(0);
    return true;
  };
  const bool bound = operation.allocation != 0;
  if (!bound) {
    meter.time(show_first);
  }
  if (!channel.meet_and_compare()) {
    return Exchanged::failed;
  }
  if (all_in_one_arena(channel)) {
    direct();
    // After an abort it may be unfinished, and nobody is to take it for whole.
    return !channel.aborted() && channel.meet() ? Exchanged::in_place : Exchanged::failed;
  }
  if (any_in_arena(channel)) {
    if (bound) {
      meter.time(show_first);
    }
    if (!channel.meet()) {
      return Exchanged::failed;
    }
  }
  const bool all_taken = meter.time([&]() noexcept {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      take(chunk);
      if (chunk + 1 < chunks) {
        show(chunk + 1);
      }
      if (!channel.meet()) {
        return false;
      }
    }
    return true;
  });
  if (all_taken) {
    meter.end();
  }
  return all_taken ? Exchanged::staged : Exchanged::failed;
}

/// Calls `work(begin, length)` for pieces of a run of elements until it is done or the channel has failed.
template <class Work>
void in_pieces(const Channel& channel, std::size_t begin, std::size_t end, std::size_t element, Work work) noexcept {
  const std::size_t piece = piece_bytes / element;
  for (; begin < end && !channel.aborted(); begin += piece) {
    work(begin, std::min(piece, end - begin));
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
