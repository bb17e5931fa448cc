#pragma once
/// @file
/// topology::ParameterServer: synchronous parameter server; the first ranks reduce one shard each.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dtrain/backend/backend.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"
#include "dtrain/topology/algorithm_communicator.hpp"
#include "dtrain/topology/dual_channel.hpp"
#include "dtrain/topology/partition.hpp"
#include "dtrain/topology/sub_channel.hpp"
#include "dtrain/topology/topology.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Servers are ranks 0 to S-1, or all ranks if there are fewer; they train, too. Every rank sends each server its
/// shard, in chunks. The server reduces the shards of all ranks in rank order, as SharedMemory does, and sends the
/// result back. With n ranks, a server's link carries n - 1 times its shard. Therefore use it for few ranks, or for
/// servers with faster links.
/// Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; here synchronous.
template <class B, int servers>
class ParameterServerReduction {
 public:
  static constexpr backend::Determinism determinism = backend::Determinism::for_a_plan;
  static constexpr std::string_view name() noexcept { return "ParameterServer"; }
  static constexpr bool reduces(DType dtype) noexcept { return B::reduces(dtype); }

  /// Collective, blocking. A server has memory for one chunk of each rank: with many ranks, chunks are shorter.
  ParameterServerReduction(const backend::ChannelContext& context, Deadline deadline)
      : bytes_(std::clamp(channel_memory_bytes / static_cast<std::size_t>(context.members.world_size),
                          std::size_t{4096}, chunk_bytes) /
               8 * 8),
        channels_(context, "servers", deadline) {
    if (is_server(channels_.rank())) {
      received_.reset(new std::byte[2 * bytes_ * static_cast<std::size_t>(channels_.size())]);
      sources_.resize(2 * static_cast<std::size_t>(channels_.size()));
    }
  }

  bool all_reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    if (channels_.size() == 1) {
      copy(input, output);
      return true;
    }
    const kernels::PartialReduction reduction(output.dtype, op, channels_.size(), Accumulate::f32);
    const std::size_t length = bytes_ / size_bytes(output.dtype);
    const std::size_t chunks = chunks_in(shard(output, 0).count, length);
    return channels_.run(chunks, [&](SubChannel& channel, ChunkRun run) {
      for (std::size_t index = run.first; index < chunks; index += run.stride) {
        if (!push(channel, slots(run), input, output, length, index)) {
          return false;
        }
        if (is_server(channels_.rank())) {
          const BufferRange own = chunk_of(shard(output, channels_.rank()), length, index);
          reduce(run, view_of(input, own), view_of(output, own), reduction);
        }
        if (!pull(channel, output, length, index)) {
          return false;
        }
      }
      return true;
    });
  }

  void abort(const Cause& cause) noexcept { channels_.abort(cause); }
  std::optional<Cause> failure() const { return channels_.failure(); }

 private:
  using SubChannel = typename DualChannel<B>::SubChannel;
  static constexpr std::size_t channel_memory_bytes = std::size_t{8} << 20;  ///< of a server, for each channel

  int server_count() const noexcept { return std::min(servers, channels_.size()); }
  bool is_server(int rank) const noexcept { return rank < server_count(); }
  int rank_at(int distance) const noexcept {
    return (channels_.rank() + channels_.size() + distance) % channels_.size();
  }

  BufferRange shard(const BufferView& whole, int server) const noexcept {
    return block_of(whole.count, server_count(), server);
  }

  /// slots(): memory of the run's channel, null on ranks that are no servers. slot(): the chunk of `rank` in it.
  std::byte* slots(ChunkRun run) const noexcept {
    return received_ ? received_.get() + run.first * static_cast<std::size_t>(channels_.size()) * bytes_ : nullptr;
  }
  std::byte* slot(std::byte* slots, int rank) const noexcept { return slots + static_cast<std::size_t>(rank) * bytes_; }

  /// In round t, rank r sends to r - t, and server s receives from s + t, modulo the number of ranks. Each rank has at
  /// most one peer to send to and one to receive from. No round waits for a later one. All servers receive in parallel.
  bool push(SubChannel& channel, std::byte* slots, const ConstBufferView& input, const BufferView& output,
            std::size_t length, std::size_t index) {
    for (int round = 1; round < channels_.size(); ++round) {
      const int to = is_server(rank_at(-round)) ? rank_at(-round) : no_rank;
      const int from = is_server(channels_.rank()) ? rank_at(round) : no_rank;
      const BufferRange sent = to == no_rank ? BufferRange{} : chunk_of(shard(output, to), length, index);
      const BufferRange received_chunk =
          from == no_rank ? BufferRange{} : chunk_of(shard(output, channels_.rank()), length, index);
      const BufferView received{from == no_rank ? nullptr : slot(slots, from), received_chunk.count, output.dtype, {}};
      if (!channel.exchange(view_of(input, sent), to, received, from)) {
        return false;
      }
    }
    return true;
  }

  /// Reduces in rank order and rounds once.
  void reduce(ChunkRun run, const ConstBufferView& own, const BufferView& result,
              const kernels::PartialReduction& reduction) noexcept {
    const auto ranks = static_cast<std::size_t>(channels_.size());
    const std::span<const std::byte*> sources = std::span(sources_).subspan(run.first * ranks, ranks);
    for (int rank = 0; rank < channels_.size(); ++rank) {
      sources[static_cast<std::size_t>(rank)] = rank == channels_.rank() ? own.data : slot(slots(run), rank);
    }
    reduction.all(sources, result.data, result.count);
  }

  bool pull(SubChannel& channel, const BufferView& output, std::size_t length, std::size_t index) {
    for (int round = 1; round < channels_.size(); ++round) {
      const int to = is_server(channels_.rank()) ? rank_at(round) : no_rank;
      const int from = is_server(rank_at(-round)) ? rank_at(-round) : no_rank;
      const BufferRange sent = to == no_rank ? BufferRange{} : chunk_of(shard(output, channels_.rank()), length, index);
      const BufferRange received_chunk = from == no_rank ? BufferRange{} : chunk_of(shard(output, from), length, index);
      if (!channel.exchange(view_of(output, sent), to, view_of(output, received_chunk), from)) {
        return false;
      }
    }
    return true;
  }

  std::size_t bytes_;                      ///< of a chunk
  std::unique_ptr<std::byte[]> received_;  ///< only of a server: for each channel a chunk of each rank
  std::vector<const std::byte*> sources_;  ///< only of a server: for each channel a pointer for each rank
  DualChannel<B> channels_;
};

/// Has `S` servers; with fewer ranks than `S`, every rank is a server.
template <int S = 1>
struct ParameterServer {
  static_assert(S > 0, "dtrain: topology::ParameterServer<S> needs at least one server");

  static constexpr std::string_view name() noexcept { return "ParameterServer"; }

  template <class B>
  static constexpr bool supports_backend = HasPointToPoint<B>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(supports_backend<B>,
                  "dtrain: topology::ParameterServer needs a backend with send and recv on host streams "
                  "(CanSendRecv in dtrain/backend/communicator.hpp)");
  }

  template <class B>
  using Rebind = AlgorithmBackend<B, ParameterServerReduction<B, S>>;
};

static_assert(Topology<ParameterServer<>>);

}  // namespace DTRAIN_NAMESPACE::topology
