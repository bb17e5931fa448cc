#pragma once
/// @file
/// run_chunked(): a shared-memory collective of long buffers, in place in an arena, or copied with a barrier for each
/// chunk.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/control_block.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Long work checks for an abort after each step of this size.
inline constexpr std::size_t abort_check_bytes = std::size_t{256} << 10;

/// Elements divided into chunks that fit a chunk buffer, evenly and in whole cache lines.
class ChunkRange {
 public:
  /// @param most elements that fit; a multiple of 64, or less than 64
  ChunkRange(std::size_t count, std::size_t most) noexcept : count_(count) {
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

/// Whether every rank's buffer of the current operation is in one allocation. Equal on every rank. Requires that the
/// operation's first barrier has passed.
inline bool all_in_one_arena(const Channel& channel) noexcept {
  const std::uint64_t allocation = channel.operation_of(0).allocation;
  for (int rank = 1; rank < channel.size(); ++rank) {
    if (channel.operation_of(rank).allocation != allocation) {
      return false;
    }
  }
  return allocation != 0;
}

/// Whether any rank's buffer is in an allocation.
inline bool any_in_arena(const Channel& channel) noexcept {
  for (int rank = 0; rank < channel.size(); ++rank) {
    if (channel.operation_of(rank).allocation != 0) {
      return true;
    }
  }
  return false;
}

/// How a chunked collective ended on this rank.
enum class ChunkedResult { in_place, copied, failed };

/// Whether a copied collective ends with a barrier. Without it, peers may still read the last chunk after the
/// operation, so the next one must publish elsewhere.
enum class LastBarrier { waited, omitted };

/// - In place: `direct()` between two barriers.
/// - Copied: one barrier for each chunk. Between two barriers, a rank reads one chunk (`read(chunk)`) and publishes the
///   next (`publish(chunk)`). It overwrites chunk - 2, which every rank read before the last barrier.
/// The first barrier decides between both. A rank whose buffer is in no arena must copy in any case, and publishes
/// chunk 0 before the first barrier. The early chunk saves a barrier if no rank's buffer is in an arena.
/// @param count_chunks called after the first barrier: the number of chunks, equal on every rank; may fail the channel
template <class CountChunks, class Direct, class Publish, class Read>
ChunkedResult run_chunked(Channel& channel, const Operation& operation, CountChunks count_chunks,
                          std::size_t copied_bytes, Direct direct, Publish publish, Read read,
                          LastBarrier last_barrier = LastBarrier::waited) noexcept {
  CopyPathTuner& tuner = channel.copy_path();
  tuner.begin(copied_bytes);
  const auto publish_first = [&]() noexcept {
    publish(0);
    return true;
  };
  const bool bound = operation.allocation != 0;
  if (!bound) {
    tuner.time(publish_first);
  }
  if (!channel.arrive_and_compare()) {
    return ChunkedResult::failed;
  }
  const std::size_t chunks = count_chunks();
  if (channel.aborted()) {
    return ChunkedResult::failed;
  }
  if (all_in_one_arena(channel)) {
    direct();
    // After an abort, direct() may be incomplete; an arrival would let peers take it for complete.
    return !channel.aborted() && channel.arrive_and_wait() ? ChunkedResult::in_place : ChunkedResult::failed;
  }
  if (any_in_arena(channel)) {
    if (bound) {
      tuner.time(publish_first);
    }
    if (!channel.arrive_and_wait()) {
      return ChunkedResult::failed;
    }
  }
  const bool all_read = tuner.time([&]() noexcept {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      read(chunk);
      if (chunk + 1 < chunks) {
        publish(chunk + 1);
      } else if (last_barrier == LastBarrier::omitted) {
        break;
      }
      if (!channel.arrive_and_wait()) {
        return false;
      }
    }
    return true;
  });
  if (all_read) {
    tuner.end();
  }
  return all_read ? ChunkedResult::copied : ChunkedResult::failed;
}

/// Calls `work(begin, length)` for steps of a range of elements until it is done or the channel has failed.
/// @param element bytes of one
/// @param step_bytes a multiple of it
template <class Work>
void in_abortable_steps(const Channel& channel, std::size_t begin, std::size_t end, std::size_t element, Work work,
                        std::size_t step_bytes = abort_check_bytes) noexcept {
  const std::size_t step = step_bytes / element;
  for (; begin < end && !channel.aborted(); begin += step) {
    work(begin, std::min(step, end - begin));
  }
}

/// Begins with the next rank, so that ranks read different memory at a time.
template <class F>
void for_each_peer(const Channel& channel, F f) noexcept {
  for (int step = 1; step < channel.size(); ++step) {
    f((channel.rank() + step) % channel.size());
  }
}

/// Stored inline: no allocation while an operation runs.
template <class Pointer>
class RankAddresses {
 public:
  /// `address(rank)` for rank 0 to ranks - 1.
  template <class F>
  RankAddresses(int ranks, F address) noexcept : ranks_(static_cast<std::size_t>(ranks)) {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      addresses_[rank] = address(static_cast<int>(rank));
    }
  }

  // NOLINTNEXTLINE(google-explicit-constructor): it is a list of addresses.
  operator std::span<const Pointer>() const noexcept { return {addresses_.data(), ranks_}; }

 private:
  std::array<Pointer, max_ranks> addresses_;
  std::size_t ranks_;
};

using Sources = RankAddresses<const std::byte*>;
using Targets = RankAddresses<std::byte*>;

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
