#pragma once
/// @file
/// ControlBlock: layout of a channel's shared memory: chunk buffers, and each rank's slot with counters, operation,
/// cause of failure and mailbox. Arena: an allocation that every rank maps.

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

#include "dtrain/backend/allocation_table.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/futex.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Zeroed memory is a valid counter. A rank first writes the data that it announces, changes `count`, then reads
/// `waiters`. A waiter increments `waiters`, then reads `count`. These are sequentially consistent, so at least one of
/// the two sees the other's change.
struct FutexCounter {
  std::atomic<std::uint32_t> count{0};    ///< the word that waiters sleep on
  std::atomic<std::uint32_t> waiters{0};  ///< ranks that sleep or are about to

  void set(std::uint32_t value) noexcept {
    count.store(value);
    wake();
  }
  void increment() noexcept {
    count.fetch_add(1);
    wake();
  }
  /// Makes no system call if no rank sleeps.
  void wake() noexcept {
    if (waiters.load() != 0) {
      futex_wake_all(count, FutexScope::shared);
    }
  }
};

/// The sleep of a rank's working thread, which any thread of that rank can end.
class FutexWaiter {
 public:
  /// Sleeps until the counter changes, wake() is called after `stop` was set, or the deadline passes. The deadline is
  /// short, because a wake may miss the waiter, and a peer may be killed. Returns at once unless `may_sleep()`, which
  /// is called when no later change can be missed.
  template <class F>
  void sleep(FutexCounter& counter, F may_sleep, const std::atomic<bool>& stop, Deadline deadline) noexcept {
    counter.waiters.fetch_add(1);
    const std::uint32_t seen = counter.count.load();
    if (may_sleep()) {
      sleeping_on_.store(&counter.count);
      if (!stop.load()) {
        futex_wait(counter.count, seen, deadline, FutexScope::shared);
      }
      sleeping_on_.store(nullptr);
    }
    counter.waiters.fetch_sub(1);
  }

  /// Threads: any.
  void wake() const noexcept {
    if (const std::atomic<std::uint32_t>* word = sleeping_on_.load()) {
      futex_wake_all(*word, FutexScope::shared);
    }
  }

 private:
  std::atomic<const std::atomic<std::uint32_t>*> sleeping_on_{nullptr};
};

/// A rank's maximum of chunks in flight, and the bytes of a chunk: two are written while two are read.
inline constexpr std::size_t mailbox_slots = 4;
inline constexpr std::size_t mailbox_slot_bytes = std::size_t{32} << 10;
/// Longer chunks are copied past the caches.
inline constexpr std::size_t mailbox_cached_bytes = std::size_t{8} << 10;

/// The sender fills a free slot and then sets `owner`; that rank reads it and frees it. Zeroed memory is a free slot.
struct alignas(64) MailboxSlot {
  std::atomic<std::uint32_t> owner{0};  ///< 1 + the receiving rank; 0: free
  DType dtype = DType::f32;
  std::uint64_t message = 0;  ///< key of the message from this sender to that receiver
  std::uint64_t offset = 0;   ///< place of the chunk in the message, in bytes
  std::uint64_t count = 0;    ///< elements of the whole message
};

/// A Cause that other processes can read; longer texts are truncated.
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
        kind >= static_cast<std::uint32_t>(CauseKind::lost) && kind <= static_cast<std::uint32_t>(CauseKind::resized);
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

/// The range of `count` elements that one rank reduces: whole cache lines; those of the last ranks may be empty.
struct ReduceSlice {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const noexcept { return end - begin; }
};

/// Elements of the longest slice of `count` elements among `ranks`.
constexpr std::size_t slice_length(std::size_t count, int ranks) noexcept {
  constexpr std::size_t line = 64;  // elements: a whole number of cache lines of every element type
  const std::size_t share = (count + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
  return (share + line - 1) / line * line;
}

constexpr ReduceSlice slice_of(std::size_t count, int ranks, int rank) noexcept {
  const std::size_t length = slice_length(count, ranks);
  const std::size_t begin = std::min(count, length * static_cast<std::size_t>(rank));
  return {begin, std::min(count, begin + length)};
}

/// The largest input that a rank publishes in its slot.
inline constexpr std::size_t slot_bytes = std::size_t{16} << 10;

/// Up to this many bytes, every rank of a reduction publishes its input in its slot and reduces everything by itself:
/// one barrier instead of two, but n times the reads. A second barrier makes each rank read n - 1 slots, which costs as
/// much as reading some lines of each. Beyond this size, the reads of all ranks dominate.
constexpr std::size_t small_bytes(int ranks) noexcept {
  return std::clamp(std::size_t{16} * 1024 / static_cast<std::size_t>(ranks), std::size_t{512}, std::size_t{8192});
}

/// Up to this many bytes, ranks do so with buffers that are in no arena, because copying in chunks costs a barrier
/// more. Measured with 16 KiB on two cores that share a level-3 cache: 2 ranks 1.3 instead of 3.0 us, 4 ranks 5.5
/// of 12.
constexpr std::size_t published_whole_bytes(int ranks) noexcept {
  return std::clamp(std::size_t{64} * 1024 / static_cast<std::size_t>(ranks), small_bytes(ranks), slot_bytes);
}

/// Ranks of one host. Each rank reads every other's slot, so many more ranks would need another algorithm.
inline constexpr int max_ranks = 256;

enum class SlotState : std::uint32_t { serving = 0, closed, failed };

/// A rank's publication at the first barrier of a collective. A rank that sees `barrier` may read the other members,
/// most of which are in the same cache line.
struct alignas(64) OperationSlot {
  std::atomic<std::uint32_t> barrier{0};  ///< written last
  Operation operation{};
  std::array<std::byte, 16> inline_input{};  ///< an input of up to 16 bytes
  alignas(64) std::array<std::byte, slot_bytes> long_input{};

  std::byte* input(std::size_t bytes) noexcept {
    return bytes <= inline_input.size() ? inline_input.data() : long_input.data();
  }
};
static_assert(offsetof(OperationSlot, long_input) == 64, "dtrain: an operation and a few bytes are one cache line");

/// A rank's publication for the others. Only that rank writes it, except that all ranks increment its counters, and
/// receivers free its mailbox slots. Zeroed memory is a valid slot.
struct alignas(64) RankSlot {
  FutexCounter arrived{};  ///< barriers this rank has arrived at
  std::atomic<SlotState> state{SlotState::serving};
  std::atomic<std::uint32_t> core{0};  ///< 1 + the core this rank last waited on; 0: unknown
  alignas(64)
      FutexCounter mailbox_events{};       ///< counts chunks sent to this rank, and its own chunks that were received
  alignas(64) std::uint64_t nonce = 0;     ///< proves that all ranks map the same memory
  std::atomic<std::uint32_t> job_rank{0};  ///< 1 + this rank's number in the job, for errors; 0: not yet set
  /// By parity of the operation's number: one is written while a slow peer still reads the other.
  std::array<OperationSlot, 2> operation_slots{};
  alignas(64) SharedCause cause{};  ///< written before `state` becomes failed
  std::array<MailboxSlot, mailbox_slots> mailbox{};
};

/// Addresses in the shared memory, as a function of the number of ranks alone.
class ControlBlock {
 public:
  /// Longer chunks mean fewer barriers, which cost most where ranks outnumber cores.
  static constexpr std::size_t chunk_bytes_for(int ranks) noexcept {
    const std::size_t share = (std::size_t{1} << 20) / static_cast<std::size_t>(ranks) / 4096 * 4096;
    return std::clamp(share, std::size_t{64} << 10, std::size_t{256} << 10);
  }
  static constexpr std::size_t bytes_for(int ranks) noexcept {
    return static_cast<std::size_t>(ranks) * (sizeof(RankSlot) + area_bytes(ranks));
  }

  ControlBlock(std::byte* base, int ranks) noexcept : base_(base), ranks_(ranks) {}

  RankSlot& slot(int rank) const noexcept {
    return *std::launder(reinterpret_cast<RankSlot*>(base_ + static_cast<std::size_t>(rank) * sizeof(RankSlot)));
  }

  /// A rank's number in the job; its number in the channel before it has arrived.
  int job_rank(int rank) const noexcept {
    const std::uint32_t stated = slot(rank).job_rank.load();
    return stated != 0 ? static_cast<int>(stated - 1) : rank;
  }

  /// Bytes of one chunk of an operation that copies.
  std::size_t chunk_bytes() const noexcept { return chunk_bytes_for(ranks_); }

  /// Chunk buffer for a rank's input of a chunk; chunks of one parity share it.
  std::byte* chunk_input(int rank, std::size_t chunk) const noexcept { return area(rank) + chunk % 2 * chunk_bytes(); }
  /// Chunk buffer for the slice of a chunk that a rank reduced; chunks of one parity share it.
  std::byte* chunk_result(int rank, std::size_t chunk) const noexcept {
    return area(rank) + 2 * chunk_bytes() + chunk % 2 * result_bytes(ranks_);
  }

  std::byte* mailbox(int rank, std::size_t index) const noexcept {
    return area(rank) + chunk_buffer_bytes(ranks_) + index * mailbox_slot_bytes;
  }

 private:
  /// The longest slice of a chunk, in whole lines: an f64 slice is at most 64 elements longer than its share.
  static constexpr std::size_t result_bytes(int ranks) noexcept {
    return slice_length(chunk_bytes_for(ranks) / 8, ranks) * 8;
  }
  static constexpr std::size_t chunk_buffer_bytes(int ranks) noexcept {
    return 2 * (chunk_bytes_for(ranks) + result_bytes(ranks));
  }
  static constexpr std::size_t area_bytes(int ranks) noexcept {
    return chunk_buffer_bytes(ranks) + mailbox_slots * mailbox_slot_bytes;
  }
  std::byte* area(int rank) const noexcept {
    return base_ + static_cast<std::size_t>(ranks_) * sizeof(RankSlot) +
           static_cast<std::size_t>(rank) * area_bytes(ranks_);
  }

  std::byte* base_;
  int ranks_;
};

static_assert(ControlBlock::bytes_for(3) % 64 == 0, "dtrain: chunk buffers begin at cache lines");

/// Borrows an allocation for one operation. Lifetime: the Allocation outlives enqueued work, as every buffer does.
struct Arena {
  std::byte* base = nullptr;
  std::size_t stride = 0;

  std::byte* memory_of(int rank) const noexcept { return base + static_cast<std::size_t>(rank) * stride; }

  /// The buffer at `operation.offset` in the memory of `rank`.
  std::byte* buffer(int rank, const Operation& operation) const noexcept { return memory_of(rank) + operation.offset; }
};

/// An arena with the number of its set-up, which counts the channel's set-ups, including failed ones: the same on every
/// rank. 0: there is no arena.
struct NumberedArena {
  std::uint64_t number = 0;
  Arena arena{};
};
using ArenaTable = AllocationTable<NumberedArena>;

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
