#pragma once
/// @file
/// The layout of a channel's shared memory: a slot for each rank, then its staging areas.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/backend/shared_memory/operation.hpp"
#include "dtrain/backend/shared_memory/reduce.hpp"
#include "dtrain/core/cause.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Up to this many bytes every rank reduces everything by itself: one meeting instead of two.
inline constexpr std::size_t small_bytes = 4096;

/// Ranks of one host; each rank looks at every other's slot, so many more would want another algorithm.
inline constexpr int max_ranks = 256;

enum class SlotState : std::uint32_t { serving = 0, closed, failed };

/// A Cause that other processes can read; texts are cut to what fits.
struct SharedCause {
  std::uint32_t kind = 0;
  std::int32_t rank = -1;
  std::array<char, 64> host{};
  std::array<char, 944> text{};

  void store(const Cause& cause) noexcept {
    kind = static_cast<std::uint32_t>(cause.kind);
    rank = cause.rank;
    copy(cause.host, host);
    copy(cause.text, text);
  }

  Cause load() const {
    const bool known =
        kind >= static_cast<std::uint32_t>(CauseKind::lost) && kind <= static_cast<std::uint32_t>(CauseKind::stopped);
    return {known ? static_cast<CauseKind>(kind) : CauseKind::exception, rank, text_of(host), text_of(text)};
  }

 private:
  static void copy(std::string_view from, std::span<char> to) noexcept {
    const std::size_t length = std::min(from.size(), to.size());
    std::memcpy(to.data(), from.data(), length);
    std::fill(to.begin() + static_cast<std::ptrdiff_t>(length), to.end(), '\0');
  }
  static std::string text_of(std::span<const char> from) {
    const auto end = std::find(from.begin(), from.end(), '\0');
    return {from.begin(), end};
  }
};

/// What one rank shows the others. Only that rank writes it, `sleepers` excepted. Zeroed memory is a valid slot.
struct alignas(64) Slot {
  std::atomic<std::uint32_t> arrived{0};   ///< meetings this rank has come to; the word its peers sleep on
  std::atomic<std::uint32_t> sleepers{0};  ///< peers that sleep on it: nobody asleep, no wake
  std::atomic<SlotState> state{SlotState::serving};
  alignas(64) std::uint64_t nonce = 0;  ///< proves that all ranks map the same memory
  /// Two, by parity: one is written while a slow peer still reads the other.
  alignas(64) std::array<Operation, 2> operations{};
  alignas(64) SharedCause cause{};  ///< written before `state` becomes failed
  alignas(64) std::array<std::array<std::byte, small_bytes>, 2> small{};
};

/// Where everything is, as a function of the number of ranks alone.
class ControlBlock {
 public:
  static constexpr std::size_t chunk_bytes_for(int ranks) noexcept {
    const std::size_t share = (std::size_t{512} << 10) / static_cast<std::size_t>(ranks) / 4096 * 4096;
    return std::clamp(share, std::size_t{64} << 10, std::size_t{256} << 10);
  }
  static constexpr std::size_t bytes_for(int ranks) noexcept {
    return static_cast<std::size_t>(ranks) * (sizeof(Slot) + staging_bytes(ranks));
  }

  ControlBlock(std::byte* base, int ranks) noexcept : base_(base), ranks_(ranks) {}

  Slot& slot(int rank) const noexcept {
    return *std::launder(reinterpret_cast<Slot*>(base_ + static_cast<std::size_t>(rank) * sizeof(Slot)));
  }

  /// Bytes of one chunk of a staged operation.
  std::size_t chunk_bytes() const noexcept { return chunk_bytes_for(ranks_); }

  /// A rank's input for the chunks of that parity.
  std::byte* staged_input(int rank, std::size_t chunk) const noexcept {
    return staging(rank) + chunk % 2 * chunk_bytes();
  }
  /// The slice that a rank reduced, for the chunks of that parity.
  std::byte* staged_result(int rank, std::size_t chunk) const noexcept {
    return staging(rank) + 2 * chunk_bytes() + chunk % 2 * result_bytes(ranks_);
  }

 private:
  /// The longest slice of a chunk, in whole lines: an f64 slice is at most 64 elements longer than its share.
  static constexpr std::size_t result_bytes(int ranks) noexcept {
    return slice_length(chunk_bytes_for(ranks) / 8, ranks) * 8;
  }
  static constexpr std::size_t staging_bytes(int ranks) noexcept {
    return 2 * (chunk_bytes_for(ranks) + result_bytes(ranks));
  }
  std::byte* staging(int rank) const noexcept {
    return base_ + static_cast<std::size_t>(ranks_) * sizeof(Slot) +
           static_cast<std::size_t>(rank) * staging_bytes(ranks_);
  }

  std::byte* base_;
  int ranks_;
};

static_assert(ControlBlock::bytes_for(3) % 64 == 0, "dtrain: staging areas begin at cache lines");

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
