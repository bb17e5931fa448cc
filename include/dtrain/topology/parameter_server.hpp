#pragma once
/// @file
/// topology::ParameterServer: the first ranks reduce for all, a shard each.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dtrain/backend/backend.hpp"
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/kernels/partial_reduction.hpp"
#include "dtrain/topology/lane.hpp"
#include "dtrain/topology/parts.hpp"
#include "dtrain/topology/routed.hpp"
#include "dtrain/topology/topology.hpp"
#include "dtrain/topology/two_lanes.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Every rank sends each server its shard, a piece at a time; the server, which trains too, reduces what all ranks sent
/// in rank order, as SharedMemory does, and sends the result back. Servers are ranks 0 to S-1, or all where there are
/// fewer. Their links carry n - 1 times their shards, so this is for few ranks, or servers with better links.
/// Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; here synchronous.
template <class B, int servers>
class ServedReduction {
 public:
  static constexpr backend::Determinism determinism = backend::Determinism::for_a_plan;
  static constexpr std::string_view name() noexcept { return "ParameterServer"; }
  static constexpr bool reduces(DType dtype) noexcept { return B::reduces(dtype); }

  /// Collective, blocking. A server has memory for a piece of every rank: the pieces are shorter where ranks are many.
  ServedReduction(const backend::ChannelContext& context, Deadline deadline)
      : bytes_(std::clamp(lane_bytes / static_cast<std::size_t>(context.members.world_size), std::size_t{4096},
                          piece_bytes) /
               8 * 8),
        lanes_(context, "servers", deadline) {
    if (serves(lanes_.rank())) {
      received_.reset(new std::byte[2 * bytes_ * static_cast<std::size_t>(lanes_.size())]);
      sources_.resize(2 * static_cast<std::size_t>(lanes_.size()));
    }
  }

  bool all_reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    if (lanes_.size() == 1) {
      copy(input, output);
      return true;
    }
    const kernels::PartialReduction reduction(output.dtype, op, lanes_.size(), Accumulate::f32);
    const std::size_t length = bytes_ / size_bytes(output.dtype);
    const std::size_t pieces = pieces_in(shard(output, 0).count, length);
    return lanes_.run(pieces, [&](Lane& lane, PieceRun run) {
      for (std::size_t index = run.first; index < pieces; index += run.stride) {
        if (!push(lane, slots(run), input, output, length, index)) {
          return false;
        }
        if (serves(lanes_.rank())) {
          const Part own = piece_of(shard(output, lanes_.rank()), length, index);
          reduce(run, view_of(input, own), view_of(output, own), reduction);
        }
        if (!pull(lane, output, length, index)) {
          return false;
        }
      }
      return true;
    });
  }

  void abort(const Cause& cause) noexcept { lanes_.abort(cause); }
  std::optional<Cause> failure() const { return lanes_.failure(); }

 private:
  using Lane = typename TwoLanes<B>::Lane;
  static constexpr std::size_t lane_bytes = std::size_t{8} << 20;  ///< of a server's memory for each lane

  int server_count() const noexcept { return std::min(servers, lanes_.size()); }
  bool serves(int rank) const noexcept { return rank < server_count(); }
  int around(int distance) const noexcept { return (lanes_.rank() + lanes_.size() + distance) % lanes_.size(); }

  Part shard(const BufferView& whole, int server) const noexcept {
    return part_of(whole.count, server_count(), server);
  }

  /// The memory of a lane, null on ranks that do not serve, and in it that for a piece of `rank`.
  std::byte* slots(PieceRun run) const noexcept {
    return received_ ? received_.get() + run.first * static_cast<std::size_t>(lanes_.size()) * bytes_ : nullptr;
  }
  std::byte* slot(std::byte* slots, int rank) const noexcept { return slots + static_cast<std::size_t>(rank) * bytes_; }

  /// In round t rank r sends to r - t and a server s receives from s + t: each has one partner a side, no round waits
  /// for a later one, and all servers receive at once.
  bool push(Lane& lane, std::byte* slots, const ConstBufferView& input, const BufferView& output, std::size_t length,
            std::size_t index) {
    for (int round = 1; round < lanes_.size(); ++round) {
      const int to = serves(around(-round)) ? around(-round) : nobody;
      const int from = serves(lanes_.rank()) ? around(round) : nobody;
      const Part sent = to == nobody ? Part{} : piece_of(shard(output, to), length, index);
      const Part taken = from == nobody ? Part{} : piece_of(shard(output, lanes_.rank()), length, index);
      const BufferView received{from == nobody ? nullptr : slot(slots, from), taken.count, output.dtype, {}};
      if (!lane.exchange(view_of(input, sent), to, received, from)) {
        return false;
      }
    }
    return true;
  }

  /// In rank order, rounded once.
  void reduce(PieceRun run, const ConstBufferView& own, const BufferView& result,
              const kernels::PartialReduction& reduction) noexcept {
    const auto ranks = static_cast<std::size_t>(lanes_.size());
    const std::span<const std::byte*> sources = std::span(sources_).subspan(run.first * ranks, ranks);
    for (int rank = 0; rank < lanes_.size(); ++rank) {
      sources[static_cast<std::size_t>(rank)] = rank == lanes_.rank() ? own.data : slot(slots(run), rank);
    }
    reduction.all(sources, result.data, result.count);
  }

  bool pull(Lane& lane, const BufferView& output, std::size_t length, std::size_t index) {
    for (int round = 1; round < lanes_.size(); ++round) {
      const int to = serves(lanes_.rank()) ? around(round) : nobody;
      const int from = serves(around(-round)) ? around(-round) : nobody;
      const Part sent = to == nobody ? Part{} : piece_of(shard(output, lanes_.rank()), length, index);
      const Part taken = from == nobody ? Part{} : piece_of(shard(output, from), length, index);
      if (!lane.exchange(view_of(output, sent), to, view_of(output, taken), from)) {
        return false;
      }
    }
    return true;
  }

  std::size_t bytes_;                      ///< of a piece
  std::unique_ptr<std::byte[]> received_;  ///< a server's: for each lane a piece of each rank
  std::vector<const std::byte*> sources_;  ///< of each lane
  TwoLanes<B> lanes_;
};

/// With `S` servers; on fewer ranks all of them serve.
template <int S = 1>
struct ParameterServer {
  static_assert(S > 0, "dtrain: topology::ParameterServer<S> needs at least one server");

  static constexpr std::string_view name() noexcept { return "ParameterServer"; }

  template <class B>
  static constexpr bool works_on = CarriesMessages<B>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(works_on<B>,
                  "dtrain: topology::ParameterServer needs a backend with send and recv on host streams "
                  "(CanSendRecv in dtrain/backend/communicator.hpp)");
  }

  template <class B>
  using Over = RoutedBackend<B, ServedReduction<B, S>>;
};

static_assert(Topology<ParameterServer<>>);

}  // namespace DTRAIN_NAMESPACE::topology
