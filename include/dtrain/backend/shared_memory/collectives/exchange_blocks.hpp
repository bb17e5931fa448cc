#pragma once
/// @file
/// Exchange and reduction of blocks of any lengths in shared memory, in place or copied in chunks; reductions have an
/// all-reduce's bits.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/collectives/chunked_collective.hpp"
#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Each rank publishes its blocks in its slot before the operation's first barrier; afterwards it may read all ranks'.
class PublishedBlocks {
 public:
  /// Publishes this rank's blocks. Lifetime: both outlive it.
  PublishedBlocks(Channel& channel, const BlockExchange& blocks) noexcept : channel_(channel), blocks_(blocks) {
    for (int peer = 0; peer < channel.size(); ++peer) {
      const auto index = static_cast<std::size_t>(peer);
      ::new (static_cast<void*>(entry(channel.rank(), peer)))
          PublishedBlock{blocks.sent[index].offset, blocks.sent[index].count, blocks.received[index].count};
    }
  }

  /// The block that rank `from` sends to rank `to`.
  BlockRange sent(int from, int to) const noexcept {
    const PublishedBlock& published = *std::launder(entry(from, to));
    return blocks_.connects(from, to) ? BlockRange{published.sent_offset, published.sent_count} : BlockRange{};
  }

  /// Compares what each rank sends with what its receiver expects. Every rank compares all, so that all report the same
  /// error. @returns false after it has failed the channel
  bool compare(const Operation& operation) const noexcept {
    for (int from = 0; from < channel_.size(); ++from) {
      for (int to = 0; to < channel_.size(); ++to) {
        const std::uint64_t expected = std::launder(entry(to, from))->received_count;
        if (blocks_.connects(from, to) && sent(from, to).count != expected) {
          fail(operation, from, to, expected);
          return false;
        }
      }
    }
    return true;
  }

 private:
  struct PublishedBlock {
    std::uint64_t sent_offset;
    std::uint64_t sent_count;
    std::uint64_t received_count;
  };
  static_assert(max_ranks * sizeof(PublishedBlock) <= slot_bytes, "dtrain: all blocks of a rank are in its slot");

  /// The entry of `rank` for its blocks to and from `peer`.
  PublishedBlock* entry(int rank, int peer) const noexcept {
    return reinterpret_cast<PublishedBlock*>(channel_.small_input_of(rank, slot_bytes)) + peer;
  }

  DTRAIN_NOT_INLINED void fail(const Operation& operation, int from, int to, std::uint64_t expected) const noexcept {
    const ControlBlock& control = channel_.control();
    channel_.fail({CauseKind::disagreement, -1, "",
                   unequal_message("in " + described_on(channel_.name(), operation),
                                   {control.job_rank(from), sent(from, to).count, operation.dtype},
                                   {control.job_rank(to), expected, operation.dtype})});
  }

  Channel& channel_;
  const BlockExchange& blocks_;
};

/// As SegmentReduceScatter, with a piece of every block in a chunk.
struct SegmentReduceBlocks {
  const std::byte* input;
  std::byte* output;            ///< may be this rank's block of the input
  Arena arena;                  ///< the input's arena, if any
  const BlockExchange* blocks;  ///< owned, until release()

  void release() const noexcept { delete blocks; }

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    const std::size_t element = size_bytes(operation.dtype);
    const BlockRange& own = blocks->sent[static_cast<std::size_t>(channel.rank())];
    const std::byte* const own_input = input + own.offset * element;
    if (channel.size() > 1) {
      reduce(channel, operation, element, own_input);
    } else if (own_input != output && own.count != 0) {
      kernels::copy_bytes(output, own_input, own.count * element);
    }
  }

 private:
  void reduce(Channel& channel, const Operation& operation, std::size_t element,
              const std::byte* own_input) const noexcept {
    const PublishedBlocks published(channel, *blocks);
    const auto self = static_cast<std::size_t>(channel.rank());
    const auto ranks = static_cast<std::size_t>(channel.size());
    const kernels::Reduction reduction = kernels::Reduction::of(operation.dtype, operation.op, channel.isa());
    const BlockPieces pieces(*blocks, channel.control().chunk_bytes() / element);
    const auto chunk_offset = [&](std::size_t rank, std::size_t chunk) {
      std::uint64_t elements = 0;
      for (std::size_t before = 0; before < rank; ++before) {
        elements += pieces.piece(before, chunk).count;
      }
      return elements * element;
    };
    const auto publish = [&](std::size_t chunk) {
      std::byte* to = channel.control().chunk_input(channel.rank(), chunk);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const BlockRange piece = pieces.piece(rank, chunk);
        const std::size_t bytes = piece.count * element;
        if (rank != self && bytes != 0) {
          const std::uint64_t begin = blocks->sent[rank].offset + piece.offset;
          channel.copy_path().copy(to, input + begin * element, bytes);
        }
        to += bytes;
      }
    };
    const auto read = [&](std::size_t chunk) {
      const BlockRange piece = pieces.piece(self, chunk);
      const std::size_t begin = piece.offset * element;
      const std::size_t offset = chunk_offset(self, chunk);
      const Sources sources(channel.size(), [&](int rank) -> const std::byte* {
        return rank == channel.rank() ? own_input + begin : channel.control().chunk_input(rank, chunk) + offset;
      });
      std::byte* const target = output + begin;
      reduction(sources, std::span(&target, 1), piece.count);
    };
    const auto reduce_in_place = [&] {
      in_abortable_steps(channel, 0, blocks->sent[self].count, element, [&](std::size_t begin, std::size_t length) {
        const Sources sources(channel.size(), [&](int rank) {
          const std::uint64_t first = published.sent(rank, channel.rank()).offset + begin;
          return arena.buffer(rank, channel.operation_of(rank)) + first * element;
        });
        std::byte* const target = output + begin * element;
        reduction(sources, std::span(&target, 1), length);
      });
    };
    const auto count_chunks = [&]() noexcept -> std::size_t {
      return published.compare(operation) && pieces.elements() != 0 ? pieces.chunks() : 0;
    };
    run_chunked(channel, operation, count_chunks, pieces.elements() * element, reduce_in_place, publish, read);
  }
};

/// Every rank publishes the blocks for its peers one after the other, in place or chunk by chunk, and copies those for
/// itself. A block for several ranks in turn is published once. All ranks take as many chunks as the one that
/// publishes most.
struct SegmentExchangeBlocks {
  const std::byte* input;
  std::byte* output;
  Arena arena;                  ///< the input's arena, if any
  const BlockExchange* blocks;  ///< owned, until release()

  void release() const noexcept { delete blocks; }

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    const std::size_t element = size_bytes(operation.dtype);
    const int self = channel.rank();
    const std::byte* const own = input + own_block(blocks->sent, self).offset * element;
    if (const std::size_t count = own_block(blocks->sent, self).count; count != 0 && own != target(self, element)) {
      kernels::copy_bytes(target(self, element), own, count * element);
    }
    if (channel.size() > 1) {
      exchange(channel, operation, element);
    }
  }

 private:
  static const BlockRange& own_block(const std::vector<BlockRange>& list, int rank) noexcept {
    return list[static_cast<std::size_t>(rank)];
  }
  std::byte* target(int from, std::size_t element) const noexcept {
    return output + own_block(blocks->received, from).offset * element;
  }

  /// A range of elements in the order in which a rank publishes them.
  struct Range {
    std::uint64_t begin;
    std::uint64_t end;
  };

  /// Calls `visit(receiver, block, range)` for each block that rank `from` publishes. @returns the elements of all
  template <class Visit>
  static std::uint64_t for_each_block(const PublishedBlocks& published, int ranks, int from, Visit visit) noexcept {
    BlockRange last;
    std::uint64_t end = 0;
    for (int to = 0; to < ranks; ++to) {
      const BlockRange block = to == from ? BlockRange{} : published.sent(from, to);
      if (block.count != 0) {
        end += block.offset == last.offset && block.count == last.count ? 0 : block.count;
        last = block;
        visit(to, block, Range{end - block.count, end});
      }
    }
    return end;
  }

  void exchange(Channel& channel, const Operation& operation, std::size_t element) const noexcept {
    const PublishedBlocks published(channel, *blocks);
    const int self = channel.rank();
    const int ranks = channel.size();
    const std::uint64_t length = channel.control().chunk_bytes() / element;
    const auto chunk_range = [&](std::size_t chunk) { return Range{chunk * length, (chunk + 1) * length}; };
    std::array<Range, max_ranks> incoming;  // each in its sender's order; set after the first barrier
    const auto count_chunks = [&]() noexcept -> std::size_t {
      std::uint64_t most = 0;
      if (published.compare(operation)) {
        for (int from = 0; from < ranks; ++from) {
          Range& own = incoming[static_cast<std::size_t>(from)] = {0, 0};
          most =
              std::max(most, for_each_block(published, ranks, from, [&](int to, const BlockRange&, const Range& range) {
                         own = to == self ? range : own;
                       }));
        }
      }
      return (most + length - 1) / length;
    };
    const auto publish = [&](std::size_t chunk) {
      std::uint64_t done = chunk_range(chunk).begin;
      for_each_block(published, ranks, self, [&](int, const BlockRange& block, const Range& range) {
        const std::uint64_t begin = std::max(range.begin, done);
        const std::uint64_t end = std::min(range.end, chunk_range(chunk).end);
        if (begin < end) {
          channel.copy_path().copy(
              channel.control().chunk_input(self, chunk) + (begin - chunk_range(chunk).begin) * element,
              input + (block.offset + begin - range.begin) * element, (end - begin) * element);
          done = end;
        }
      });
    };
    const auto read = [&](std::size_t chunk) {
      for_each_peer(channel, [&](int peer) {
        const Range& range = incoming[static_cast<std::size_t>(peer)];
        const std::uint64_t begin = std::max(range.begin, chunk_range(chunk).begin);
        const std::uint64_t end = std::min(range.end, chunk_range(chunk).end);
        if (begin < end) {
          kernels::copy_bytes(target(peer, element) + (begin - range.begin) * element,
                              channel.control().chunk_input(peer, chunk) + (begin - chunk_range(chunk).begin) * element,
                              (end - begin) * element);
        }
      });
    };
    const auto read_in_place = [&] {
      for_each_peer(channel, [&](int peer) {
        const BlockRange block = published.sent(peer, self);
        const std::byte* const from = arena.buffer(peer, channel.operation_of(peer)) + block.offset * element;
        std::byte* const to = target(peer, element);
        in_abortable_steps(channel, 0, block.count * element, 1, [&](std::size_t begin, std::size_t bytes) {
          kernels::copy_bytes(to + begin, from + begin, bytes);
        });
      });
    };
    const std::uint64_t staged = for_each_block(published, ranks, self, [](int, const BlockRange&, const Range&) {});
    run_chunked(channel, operation, count_chunks, staged * element, read_in_place, publish, read);
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
