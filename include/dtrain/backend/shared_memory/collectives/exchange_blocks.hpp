#pragma once
/// @file
/// Exchange of blocks in shared memory: in place, or staged; copies bytes of any element type.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/shared_memory/arena.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/collectives/chunked_collective.hpp"
#include "dtrain/backend/shared_memory/collectives/published_blocks.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Every rank publishes the blocks for its peers one after the other, in place or chunk by chunk, and copies those for
/// itself. A block for several ranks in turn is published once. All ranks take as many chunks as the one that
/// publishes most.
struct ExchangeBlocks {
  const std::byte* input;
  std::byte* output;
  Arena arena;                  ///< of the input, if any
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
    std::array<Range, max_ranks> incoming;  // in its sender's order; set after the first barrier
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
