#pragma once
/// @file
/// All-reduce and reduce-scatter in shared memory: through slots, in place or in chunks, with equal bits; or by a
/// topology's algorithm over mailboxes.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <span>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/collectives/chunked_collective.hpp"
#include "dtrain/backend/shared_memory/collectives/mailbox_endpoint.hpp"
#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/reduction.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A channel's endpoint, and constants and memory for its selected algorithm. Outlives the channel's work.
struct MailboxState {
  MailboxState(const ChannelContext& context, Channel& channel,
               const message_passing::SelectedAllReduce<MailboxEndpoint>& all_reduce)
      : endpoint(channel),
        selected(all_reduce),
        info{context.name, context.members.ranks_in_job(), tuning(), context.describe, context.accumulate} {}

  /// Headers without a payload, and messages that fill a mailbox: then the receiver copies one while the sender writes
  /// the next.
  static message_passing::Tuning tuning() noexcept {
    message_passing::Tuning tuning;
    tuning.small_bytes = 0;
    tuning.chunk_bytes = mailbox_slots * mailbox_slot_bytes;
    tuning.chunks_in_flight = 2;
    return tuning;
  }

  MailboxEndpoint endpoint;
  const message_passing::SelectedAllReduce<MailboxEndpoint> selected;
  const message_passing::ChannelInfo info;
  message_passing::Scratch scratch;
};

struct EndpointAllReduce {
  const std::byte* input;
  std::byte* output;
  double* squares;  ///< see AllReduceWithSquares; may be null
  MailboxState* mailbox;

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    using Context = message_passing::OperationContext<MailboxEndpoint>;
    try {
      Context context{mailbox->endpoint, mailbox->scratch, mailbox->info, operation};
      const message_passing::Buffers buffers{input, output};
      const message_passing::Routine routine = mailbox->selected.routine(context, buffers);
      routine.resume();
      if (routine.done()) {
        routine.check();
        if (squares != nullptr) {
          *squares = kernels::sum_of_squares(operation.dtype, output, operation.count, channel.isa());
        }
      }
    } catch (const Error& error) {
      const bool disagrees = error.code() == make_error_code(Errc::disagreement);
      disagrees ? channel.fail({CauseKind::disagreement, -1, "", error.what()}) : fail(channel, error);
    } catch (const std::exception& error) {
      fail(channel, error);
    }
  }

 private:
  static void fail(Channel& channel, const std::exception& error) {
    channel.fail({CauseKind::exception, channel.job_rank(), channel.host(),
                  format_text("{}: {}", {channel.present(), error.what()})});
  }
};

/// Bytes moved for S bytes on n ranks: n(n+3)S through slots (small buffers, and those of a few KiB more that are in no
/// arena), 2nS in place in an arena, (5n-2)S where other memory is copied through the segment, because a rank does not
/// copy its own slice of its input.
struct SegmentAllReduce {
  const std::byte* input;
  std::byte* output;
  Arena arena;
  double* squares;  ///< see AllReduceWithSquares; may be null

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    AllReduceExecution(*this, channel, operation).all();
  }

 private:
  /// One execution on one rank.
  class AllReduceExecution {
   public:
    AllReduceExecution(const SegmentAllReduce& work, Channel& channel, const Operation& operation) noexcept
        : work_(work),
          channel_(channel),
          reduction_(kernels::Reduction::of(operation.dtype, operation.op, channel.isa())),
          element_(size_bytes(operation.dtype)),
          count_(operation.count),
          chunks_(count_, channel.control().chunk_bytes() / element_),
          operation_(operation) {}

    void all() noexcept {
      if (channel_.size() == 1) {
        if (work_.input != work_.output) {
          kernels::copy_bytes(work_.output, work_.input, count_ * element_);
        }
        sum_output();
      } else if (count_ * element_ <= small_bytes(channel_.size())) {
        small();
      } else if (count_ * element_ <= published_whole_bytes(channel_.size())) {
        medium();
      } else {
        large();
      }
    }

   private:
    /// Every rank publishes its input and reduces everything: one barrier.
    void small() noexcept {
      kernels::copy_bytes(own_slot(), work_.input, count_ * element_);
      if (channel_.arrive_and_compare()) {
        reduce_published();
        sum_output();
      }
    }

    std::byte* own_slot() const noexcept { return channel_.small_input_of(channel_.rank(), count_ * element_); }

    void reduce_published() const noexcept {
      const Sources sources(channel_.size(),
                            [&](int rank) { return channel_.small_input_of(rank, count_ * element_); });
      reduction_(sources, std::span(&work_.output, 1), count_);
    }

    /// In place, or as small() if a rank's buffer is in no arena. The last barrier is the next operation's first, as in
    /// small(): slots alternate.
    void medium() noexcept {
      end(run_chunked(
          channel_, operation_, [] { return std::size_t{1}; }, count_ * element_, [&] { in_place(); },
          [&](std::size_t) { kernels::copy_bytes(own_slot(), work_.input, count_ * element_); },
          [&](std::size_t) { reduce_published(); }, LastBarrier::omitted));
    }

    void large() noexcept {
      const ChunkedResult ended = run_chunked(
          channel_, operation_, [&] { return chunks_.number(); }, count_ * element_, [&] { in_place(); },
          [&](std::size_t chunk) { copy_in(chunk); },
          [&](std::size_t chunk) {
            if (chunk > 0) {
              copy_out(chunk - 1);
            }
            reduce_slice(chunk);
          });
      if (ended == ChunkedResult::copied) {
        copy_out(chunks_.number() - 1);
      }
      end(ended);
    }

    void end(ChunkedResult ended) const noexcept {
      if (ended == ChunkedResult::copied) {
        sum_output();
      } else if (ended == ChunkedResult::in_place && work_.squares != nullptr) {
        *work_.squares = sum_of_slices();
      }
    }

    /// Rank r reduces slice r of every buffer and writes the result to all. If any rank needs the sum of squares, every
    /// rank adds up its slice's and publishes the sum where small inputs are. The rank adds piece by piece: what
    /// is in the first-level cache costs about 1% of its reduction, a second pass over memory 30 to 90%.
    void in_place() noexcept {
      const ReduceSlice own = slice_of(count_, channel_.size(), channel_.rank());
      const bool sums_squares = any_rank_sums_squares();
      constexpr std::size_t cached_bytes = 4096;  // bytes of each rank's buffer
      double sum = 0;
      in_abortable_steps(
          channel_, own.begin, own.end, element_,
          [&](std::size_t begin, std::size_t length) {
            const auto buffer = [&](int rank) {
              return work_.arena.buffer(rank, channel_.operation_of(rank)) + begin * element_;
            };
            reduction_(Sources(channel_.size(), buffer), Targets(channel_.size(), buffer), length);
            if (sums_squares) {
              sum += squares_of(buffer(channel_.rank()), length);
            }
          },
          sums_squares ? cached_bytes : abort_check_bytes);
      if (sums_squares) {
        std::memcpy(channel_.small_input_of(channel_.rank(), sizeof(sum)), &sum, sizeof(sum));
      }
    }

    bool any_rank_sums_squares() const noexcept {
      for (int rank = 0; rank < channel_.size(); ++rank) {
        if (channel_.operation_of(rank).sums_squares) {
          return true;
        }
      }
      return false;
    }

    /// In rank order, so that every rank gets the same bits. No rank writes to these slots before the operation after
    /// the next, which begins after every rank has left this one.
    double sum_of_slices() const noexcept {
      double sum = 0;
      for (int rank = 0; rank < channel_.size(); ++rank) {
        double slice = 0;
        std::memcpy(&slice, channel_.small_input_of(rank, sizeof(slice)), sizeof(slice));
        sum += slice;
      }
      return sum;
    }

    double squares_of(const std::byte* elements, std::size_t count) const noexcept {
      return kernels::sum_of_squares(operation_.dtype, elements, count, channel_.isa());
    }

    void sum_output() const noexcept {
      if (work_.squares != nullptr) {
        *work_.squares = squares_of(work_.output, count_);
      }
    }

    void copy_in(std::size_t chunk) const noexcept {
      const std::byte* from = work_.input + chunks_.begin(chunk) * element_;
      std::byte* to = channel_.control().chunk_input(channel_.rank(), chunk);
      const std::size_t length = chunks_.length(chunk);
      const ReduceSlice own = slice_of(length, channel_.size(), channel_.rank());
      channel_.copy_path().copy(to, from, own.begin * element_);
      channel_.copy_path().copy(to + own.end * element_, from + own.end * element_, (length - own.end) * element_);
    }

    /// Reduces into this rank's output, and copies from there to the chunk buffer while it is in the cache.
    void reduce_slice(std::size_t chunk) const noexcept {
      const ReduceSlice own = slice_of(chunks_.length(chunk), channel_.size(), channel_.rank());
      std::byte* const result = channel_.control().chunk_result(channel_.rank(), chunk);
      constexpr std::size_t cached_bytes = std::size_t{32} << 10;
      for (std::size_t begin = own.begin; begin < own.end; begin += cached_bytes / element_) {
        const std::size_t length = std::min(cached_bytes / element_, own.end - begin);
        const std::size_t offset = (chunks_.begin(chunk) + begin) * element_;
        const Sources sources(channel_.size(), [&](int rank) -> const std::byte* {
          return rank == channel_.rank() ? work_.input + offset
                                         : channel_.control().chunk_input(rank, chunk) + begin * element_;
        });
        std::byte* const target = work_.output + offset;
        reduction_(sources, std::span(&target, 1), length);
        channel_.copy_path().copy(result + (begin - own.begin) * element_, target, length * element_);
      }
    }

    void copy_out(std::size_t chunk) const noexcept {
      for (int rank = 0; rank < channel_.size(); ++rank) {
        const ReduceSlice slice = slice_of(chunks_.length(chunk), channel_.size(), rank);
        if (rank != channel_.rank() && slice.size() != 0) {
          kernels::copy_bytes(work_.output + (chunks_.begin(chunk) + slice.begin) * element_,
                              channel_.control().chunk_result(rank, chunk), slice.size() * element_);
        }
      }
    }

    const SegmentAllReduce& work_;
    Channel& channel_;
    const kernels::Reduction reduction_;
    const std::size_t element_;
    const std::size_t count_;
    const ChunkRange chunks_;
    const Operation& operation_;
  };
};

/// Every rank publishes its input, in place or chunk by chunk, and reduces its own block of all inputs. Bytes moved for
/// S bytes on n ranks: in an arena (n+1)S, copied about 3nS, because a rank does not copy its own block.
struct SegmentReduceScatter {
  const std::byte* input;
  std::byte* output;  ///< may be this rank's block of the input
  Arena arena;        ///< the input's arena, if any

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
