#pragma once
/// @file
/// Reduce-scatter in shared memory: through slots, in place, or copied in chunks, with the bits of an all-reduce.
/// Communicator enqueues it.

#include <cstddef>
#include <span>

#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/collectives/chunked_collective.hpp"
#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Every rank publishes its input, in place or chunk by chunk, and reduces its own block of all inputs. Bytes moved for
/// S bytes on n ranks: in an arena (n+1)S, copied about 3nS, because a rank does not copy its own block.
struct SegmentReduceScatter {
  const std::byte* input;
  std::byte* output;  ///< may be this rank's block of the input
  Arena arena;        ///< of the input, if any

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    const Layout layout{operation.count, size_bytes(operation.dtype), channel.size(), channel.rank()};
    if (layout.ranks == 1) {
      if (input != output) {
        kernels::copy_bytes(output, input, layout.all_bytes());
      }
    } else if (layout.all_bytes() <= small_bytes(layout.ranks)) {
      small(channel, operation, layout);
    } else {
      large(channel, operation, layout);
    }
  }

 private:
  /// Blocks of the input, or of a chunk of it.
  struct Layout {
    std::size_t count;  ///< elements of a block
    std::size_t element;
    int ranks;
    int rank;

    std::size_t block_bytes() const noexcept { return count * element; }
    std::size_t all_bytes() const noexcept { return block_bytes() * static_cast<std::size_t>(ranks); }
    std::size_t block(int of) const noexcept { return static_cast<std::size_t>(of) * block_bytes(); }
  };

  static kernels::Reduction reduction(const Channel& channel, const Operation& operation) noexcept {
    return kernels::Reduction::of(operation.dtype, operation.op, channel.isa());
  }

  /// Through slots, with one barrier.
  void small(Channel& channel, const Operation& operation, const Layout& layout) const noexcept {
    kernels::copy_bytes(channel.small_input_of(layout.rank, layout.all_bytes()), input, layout.all_bytes());
    if (channel.arrive_and_compare()) {
      const Sources sources(layout.ranks, [&](int rank) {
        return channel.small_input_of(rank, layout.all_bytes()) + layout.block(layout.rank);
      });
      reduction(channel, operation)(sources, std::span(&output, 1), layout.count);
    }
  }

  void large(Channel& channel, const Operation& operation, const Layout& layout) const noexcept {
    const kernels::Reduction reduce = reduction(channel, operation);
    const ChunkRange chunks(layout.count,
                            channel.control().chunk_bytes() / layout.element / static_cast<std::size_t>(layout.ranks));
    const auto offset_in_chunk = [&](int rank, std::size_t chunk) {
      return static_cast<std::size_t>(rank) * chunks.length(chunk) * layout.element;
    };
    run_chunked(
        channel, operation, [&] { return chunks.number(); }, layout.all_bytes(),
        [&] {
          in_abortable_steps(channel, 0, layout.count, layout.element, [&](std::size_t begin, std::size_t length) {
            const Sources sources(layout.ranks, [&](int rank) {
              return arena.buffer(rank, channel.operation_of(rank)) + layout.block(layout.rank) +
                     begin * layout.element;
            });
            std::byte* const target = output + begin * layout.element;
            reduce(sources, std::span(&target, 1), length);
          });
        },
        [&](std::size_t chunk) {
          for (int rank = 0; rank < layout.ranks; ++rank) {
            if (rank != layout.rank) {
              channel.copy_path().copy(channel.control().chunk_input(layout.rank, chunk) + offset_in_chunk(rank, chunk),
                                       input + layout.block(rank) + chunks.begin(chunk) * layout.element,
                                       chunks.length(chunk) * layout.element);
            }
          }
        },
        [&](std::size_t chunk) {
          const std::size_t begin = chunks.begin(chunk) * layout.element;
          const Sources sources(layout.ranks, [&](int rank) -> const std::byte* {
            return rank == layout.rank
                       ? input + layout.block(rank) + begin
                       : channel.control().chunk_input(rank, chunk) + offset_in_chunk(layout.rank, chunk);
          });
          std::byte* const target = output + begin;
          reduce(sources, std::span(&target, 1), chunks.length(chunk));
        });
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
