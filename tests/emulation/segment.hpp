#pragma once
/// @file
/// The memory through which the ranks of a communicator meet, be they threads or processes.

#include <nccl.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "futex.hpp"

namespace emulation {

constexpr int most_ranks = 16;
constexpr std::size_t chunk_bytes = std::size_t{256} << 10;
constexpr std::size_t mail_bytes = std::size_t{32} << 10;

/// What a rank is doing, for the others to compare with what they do.
struct CallMade {
  std::uint32_t kind;
  std::int32_t type;
  std::int32_t reduction;
  std::int32_t root;
  friend bool operator==(const CallMade&, const CallMade&) = default;
};

/// What one rank tells the others. What is not atomic is written before, and read behind, a counter that is.
struct alignas(64) RankCell {
  std::atomic<std::uint32_t> joined;
  std::atomic<std::uint32_t> closing;  // finalised, destroyed or aborted
  std::int32_t process;
  std::int32_t device;
  std::uint64_t host;
  std::atomic<std::uint64_t> written;  // steps of collectives whose bytes lie in the rank's chunk
  std::atomic<std::uint64_t> read;     // steps that the rank has read all chunks of
  CallMade call;
  std::atomic<std::uint32_t> split_asked;  // splits of the communicator, counted
  std::atomic<std::uint32_t> split_made;
  std::atomic<std::uint32_t> split_read;
  std::int32_t color;
  std::int32_t key;
  ncclUniqueId child;
  std::atomic<std::uint32_t> windows_asked;  // counted, too
  std::atomic<std::uint32_t> algorithms;     // that the rank has come to, a bit each
};

/// From one rank to another: one piece of a message at a time.
struct alignas(64) Mailbox {
  std::atomic<std::uint64_t> written;
  std::atomic<std::uint64_t> read;
  std::uint64_t message_bytes;
  std::array<std::byte, mail_bytes> piece;
};

/// Zeros when made. Ranks map it each on their own, so that ThreadSanitizer takes nothing here for an order of theirs.
struct Segment {
  std::atomic<std::uint64_t> token;
  std::atomic<std::int32_t> size;
  std::atomic<std::uint32_t> counter;
  std::array<RankCell, most_ranks> cells;
  std::array<std::array<std::byte, chunk_bytes>, most_ranks> chunks;
  std::array<std::array<Mailbox, most_ranks>, most_ranks> mail;  // [from][to]
};

/// An id that names a new segment: a file without a name, which goes with the process that made it.
bool make_segment(ncclUniqueId& id) noexcept;
/// Null where the process that made the id has gone, or the id is none.
Segment* map_segment(const ncclUniqueId& id) noexcept;
void unmap_segment(Segment* segment) noexcept;
/// All ranks have mapped it: this process, if it made it, need not keep it open.
void close_segment(const ncclUniqueId& id) noexcept;

/// Whether the process has ended, though nobody may have waited for it yet.
bool has_ended(int process) noexcept;

}  // namespace emulation
