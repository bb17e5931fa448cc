#pragma once
/// @file
/// The three ways of an all-reduce in shared memory; all give the same bits.

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "dtrain/backend/shared_memory/arena.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/kernels.hpp"
#include "dtrain/backend/shared_memory/placement.hpp"
#include "dtrain/backend/shared_memory/reduce.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Bytes moved for S bytes on n ranks: small n(n+3)S, in an arena 2nS, staged (5n-2)S: what a rank reduces of its own
/// input is not copied.
struct AllReduce {
  const std::byte* input;
  std::byte* output;
  Arena arena;
  Kernels kernels;

  void operator()(Channel& channel, const Operation& operation) const noexcept { Run(*this, channel, operation).all(); }

 private:
  using Sources = std::array<const std::byte*, max_ranks>;
  using Targets = std::array<std::byte*, max_ranks>;

  /// One execution on one rank.
  class Run {
   public:
    Run(const AllReduce& work, Channel& channel, const Operation& operation) noexcept
        : work_(work),
          channel_(channel),
          operation_(operation),
          element_(size_bytes(operation.dtype)),
          count_(operation.count),
          chunk_(chunk_length()),
          chunks_(chunk_ == 0 ? 0 : (count_ + chunk_ - 1) / chunk_) {}

    void all() noexcept {
      if (channel_.size() == 1) {
        if (work_.input != work_.output) {
          copy_bytes(work_.output, work_.input, count_ * element_);
        }
      } else if (count_ * element_ <= small_bytes) {
        small();
      } else {
        large();
      }
    }

   private:
    /// Every rank shows its input and reduces everything: one meeting.
    void small() noexcept {
      copy_bytes(channel_.small_of(channel_.rank()), work_.input, count_ * element_);
      if (!channel_.meet_and_compare()) {
        return;
      }
      Sources sources;
      for (int rank = 0; rank < channel_.size(); ++rank) {
        sources[index(rank)] = channel_.small_of(rank);
      }
      reduce_from(sources, std::span(&work_.output, 1), count_);
    }

    /// Whether it can be done in place is known only after the first meeting. A rank whose buffer is in no arena knows
    /// before that it is staged, and saves the others a meeting.
    void large() noexcept {
      const bool bound = operation_.allocation != 0;
      if (!bound) {
        copy_in(0);
      }
      if (!channel_.meet_and_compare()) {
        return;
      }
      if (all_in_one_arena(channel_)) {
        in_place();
        return;
      }
      if (any_in_arena(channel_)) {
        if (bound) {
          copy_in(0);
        }
        if (!channel_.meet()) {
          return;
        }
      }
      staged();
    }

    /// Rank r reduces slice r of every buffer and writes the result to all.
    void in_place() noexcept {
      const Slice own = slice_of(count_, channel_.size(), channel_.rank());
      const std::size_t piece = piece_bytes / element_;
      for (std::size_t begin = own.begin; begin < own.end && !channel_.aborted(); begin += piece) {
        Sources sources;
        Targets targets;
        for (int rank = 0; rank < channel_.size(); ++rank) {
          std::byte* buffer = work_.arena.buffer(rank, channel_.operation_of(rank)) + begin * element_;
          sources[index(rank)] = buffer;
          targets[index(rank)] = buffer;
        }
        reduce_from(sources, std::span(targets.data(), ranks()), std::min(piece, own.end - begin));
      }
      if (!channel_.aborted()) {  // else the slice may be unfinished, and nobody is to take it for whole
        channel_.meet();
      }
    }

    /// One meeting for each chunk: between two of them a rank takes the results of the chunk before, reduces its slice
    /// of this one and shows its input of the next. What it overwrites was last read before the meeting.
    void staged() noexcept {
      for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
        if (chunk > 0) {
          copy_out(chunk - 1);
        }
        reduce_slice(chunk);
        if (chunk + 1 < chunks_) {
          copy_in(chunk + 1);
        }
        if (!channel_.meet()) {
          return;
        }
      }
      copy_out(chunks_ - 1);
    }

    void copy_in(std::size_t chunk) const noexcept {
      const std::byte* from = work_.input + chunk * chunk_ * element_;
      std::byte* to = channel_.control().staged_input(channel_.rank(), chunk);
      const Slice own = slice_of(length_of(chunk), channel_.size(), channel_.rank());
      copy_bytes(to, from, own.begin * element_);
      copy_bytes(to + own.end * element_, from + own.end * element_, (length_of(chunk) - own.end) * element_);
    }

    void reduce_slice(std::size_t chunk) const noexcept {
      const Slice own = slice_of(length_of(chunk), channel_.size(), channel_.rank());
      const std::size_t own_offset = (chunk * chunk_ + own.begin) * element_;
      Sources sources;
      for (int rank = 0; rank < channel_.size(); ++rank) {
        sources[index(rank)] = rank == channel_.rank()
                                   ? work_.input + own_offset
                                   : channel_.control().staged_input(rank, chunk) + own.begin * element_;
      }
      const std::array targets{work_.output + own_offset, channel_.control().staged_result(channel_.rank(), chunk)};
      reduce_from(sources, targets, own.size());
    }

    void copy_out(std::size_t chunk) const noexcept {
      for (int rank = 0; rank < channel_.size(); ++rank) {
        const Slice slice = slice_of(length_of(chunk), channel_.size(), rank);
        if (rank != channel_.rank() && slice.size() != 0) {
          copy_bytes(work_.output + (chunk * chunk_ + slice.begin) * element_,
                     channel_.control().staged_result(rank, chunk), slice.size() * element_);
        }
      }
    }

    void reduce_from(const Sources& sources, std::span<std::byte* const> targets, std::size_t count) const noexcept {
      reduce(work_.kernels, element_, std::span(sources.data(), ranks()), targets, count);
    }

    /// Elements of a chunk: as many as fit, evenly distributed.
    std::size_t chunk_length() const noexcept {
      const std::size_t most = channel_.control().chunk_bytes() / element_;
      const std::size_t chunks = (count_ + most - 1) / most;
      return chunks == 0 ? 0 : slice_length(count_, static_cast<int>(chunks));
    }
    std::size_t length_of(std::size_t chunk) const noexcept { return std::min(chunk_, count_ - chunk * chunk_); }
    std::size_t ranks() const noexcept { return static_cast<std::size_t>(channel_.size()); }
    static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }

    const AllReduce& work_;
    Channel& channel_;
    const Operation& operation_;
    const std::size_t element_;
    const std::size_t count_;
    const std::size_t chunk_;
    const std::size_t chunks_;
  };
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
