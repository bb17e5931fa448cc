#pragma once
/// @file
/// topology::Ring: bandwidth-optimal ring all-reduce; every rank sends to the next rank only.

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "dtrain/backend/backend.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"
#include "dtrain/topology/algorithm_communicator.hpp"
#include "dtrain/topology/dual_channel.hpp"
#include "dtrain/topology/partition.hpp"
#include "dtrain/topology/sub_channel.hpp"
#include "dtrain/topology/topology.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Reduce-scatter and all-gather round a ring of n ranks, in 2 (n - 1) steps. Each rank sends 2 (n - 1) / n of the
/// bytes, the minimum. For large buffers; with many ranks, the number of steps makes small buffers slow.
/// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
template <class B>
class RingReduction {
 public:
  static constexpr backend::Determinism determinism = backend::Determinism::for_a_plan;
  static constexpr std::string_view name() noexcept { return "Ring"; }
  static constexpr bool reduces(DType dtype) noexcept { return B::reduces(dtype); }

  /// Collective, blocking.
  RingReduction(const backend::ChannelContext& context, Deadline deadline)
      : accumulate_(context.accumulate),
        memory_(new std::byte[4 * chunk_bytes]),
        channels_(context, "ring", deadline) {}

  bool all_reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    if (channels_.size() == 1) {
      copy(input, output);
      return true;
    }
    const kernels::PartialReduction reduction(output.dtype, op, channels_.size(), accumulate_);
    const std::size_t length = chunk_bytes / size_bytes(reduction.type());
    const std::size_t chunks = chunks_in(block_of(output.count, channels_.size(), 0).count, length);
    return channels_.run(chunks, [&](SubChannel& channel, ChunkRun run) {
      bool works = true;
      for (std::size_t chunk = run.first; works && chunk < chunks; chunk += run.stride) {
        const auto chunk_of_block = [&](int back) { return chunk_of(block(output, back), length, chunk); };
        works =
            reduce(channel, memory_.get() + 2 * run.first * chunk_bytes, input, output, reduction, chunk_of_block) &&
            gather(channel, output, chunk_of_block);
      }
      return works;
    });
  }

  void abort(const Cause& cause) noexcept { channels_.abort(cause); }
  std::optional<Cause> failure() const { return channels_.failure(); }

 private:
  using SubChannel = typename DualChannel<B>::SubChannel;

  int next() const noexcept { return (channels_.rank() + 1) % channels_.size(); }
  int previous() const noexcept { return (channels_.rank() + channels_.size() - 1) % channels_.size(); }

  /// The block of the rank that is `back` places before this one in the ring.
  BufferRange block(const BufferView& whole, int back) const noexcept {
    return block_of(whole.count, channels_.size(), (channels_.rank() + 2 * channels_.size() - back) % channels_.size());
  }

  /// Reduce-scatter. In step s, rank r sends its partial result of block r - s to the next rank, receives that of block
  /// r - s - 1 from the previous rank, and adds its own elements. In the end it has the result of block r + 1.
  template <class ChunkOfBlock>
  bool reduce(SubChannel& channel, std::byte* memory, const ConstBufferView& input, const BufferView& output,
              const kernels::PartialReduction& reduction, ChunkOfBlock chunk_of_block) {
    std::byte* sending = memory;
    std::byte* receiving = memory + chunk_bytes;
    for (int step = 0; step + 1 < channels_.size(); ++step) {
      const bool begins = step == 0;
      const bool ends = step + 2 == channels_.size();
      const BufferRange sent = chunk_of_block(step);
      const BufferRange taken = chunk_of_block(step + 1);
      const ConstBufferView partial{sending, sent.count, reduction.type()};
      const BufferView received =
          begins ? BufferView{reduction.contributions_in(receiving, taken.count), taken.count, output.dtype, {}}
                 : BufferView{receiving, taken.count, reduction.type(), {}};
      if (!channel.exchange(begins ? view_of(input, sent) : partial, next(), received, previous())) {
        return false;
      }
      const std::array<kernels::PartialReduction::Operand, 2> sources{
          {{received.data, !begins}, {view_of(input, taken).data, false}}};
      reduction(sources, ends ? view_of(output, taken).data : receiving, taken.count, ends);
      std::swap(sending, receiving);
    }
    return true;
  }

  /// All-gather. In step s, rank r sends the result of block r - s + 1 and receives that of block r - s.
  template <class ChunkOfBlock>
  bool gather(SubChannel& channel, const BufferView& output, ChunkOfBlock chunk_of_block) {
    for (int step = 0; step + 1 < channels_.size(); ++step) {
      if (!channel.exchange(view_of(output, chunk_of_block(step - 1)), next(), view_of(output, chunk_of_block(step)),
                            previous())) {
        return false;
      }
    }
    return true;
  }

  Accumulate accumulate_;
  std::unique_ptr<std::byte[]> memory_;  ///< for each channel one chunk to send and one to receive
  DualChannel<B> channels_;
};

/// Names RingReduction in a policy.
struct Ring {
  static constexpr std::string_view name() noexcept { return "Ring"; }

  template <class B>
  static constexpr bool supports_backend = HasPointToPoint<B>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(supports_backend<B>,
                  "dtrain: topology::Ring needs a backend with send and recv on host streams "
                  "(CanSendRecv in dtrain/backend/communicator.hpp)");
  }

  template <class B>
  using Rebind = AlgorithmBackend<B, RingReduction<B>>;
};

static_assert(Topology<Ring>);

}  // namespace DTRAIN_NAMESPACE::topology
