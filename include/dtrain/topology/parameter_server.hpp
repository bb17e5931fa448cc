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
#include "dtrain/topology/combination.hpp"
#include "dtrain/topology/lane.hpp"
#include "dtrain/topology/parts.hpp"
#include "dtrain/topology/routed.hpp"
#include "dtrain/topology/topology.hpp"

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
      : lane_(B::open_blocking(beside(context, "servers"), deadline)),
        bytes_(std::clamp(server_bytes / static_cast<std::size_t>(lane_.size()), std::size_t{4096}, piece_bytes) / 8 *
               8) {
    if (serves(lane_.rank())) {
      received_.reset(new std::byte[bytes_ * static_cast<std::size_t>(lane_.size())]);
      sources_.resize(static_cast<std::size_t>(lane_.size()));
    }
  }

  bool all_reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op) {
    if (lane_.size() == 1) {
      copy(input, output);
      return true;
    }
    const Combination combine(output.dtype, op, lane_.size());
    const std::size_t length = bytes_ / size_bytes(output.dtype);
    const std::size_t pieces = pieces_in(shard(output, 0).count, length);
    for (std::size_t index = 0; index < pieces; ++index) {
      if (!push(input, output, length, index)) {
        return false;
      }
      if (serves(lane_.rank())) {
        const Part own = piece_of(shard(output, lane_.rank()), length, index);
        reduce(view_of(input, own), view_of(output, own), combine);
      }
      if (!pull(output, length, index)) {
        return false;
      }
    }
    return true;
  }

  void abort(const Cause& cause) noexcept { lane_.abort(cause); }
  std::optional<Cause> failure() const { return lane_.failure(); }

 private:
  static constexpr std::size_t server_bytes = std::size_t{16} << 20;

  int server_count() const noexcept { return std::min(servers, lane_.size()); }
  bool serves(int rank) const noexcept { return rank < server_count(); }
  int around(int distance) const noexcept { return (lane_.rank() + lane_.size() + distance) % lane_.size(); }

  Part shard(const BufferView& whole, int server) const noexcept {
    return part_of(whole.count, server_count(), server);
  }

  std::byte* slot(int rank) const noexcept { return received_.get() + static_cast<std::size_t>(rank) * bytes_; }

  /// In round t rank r sends to r - t and a server s receives from s + t: each has one partner a side, no round waits
  /// for a later one, and all servers receive at once.
  bool push(const ConstBufferView& input, const BufferView& output, std::size_t length, std::size_t index) {
    for (int round = 1; round < lane_.size(); ++round) {
      const int to = serves(around(-round)) ? around(-round) : nobody;
      const int from = serves(lane_.rank()) ? around(round) : nobody;
      const Part sent = to == nobody ? Part{} : piece_of(shard(output, to), length, index);
      const Part taken = from == nobody ? Part{} : piece_of(shard(output, lane_.rank()), length, index);
      const BufferView received{from == nobody ? nullptr : slot(from), taken.count, output.dtype, {}};
      if (!lane_.exchange(view_of(input, sent), to, received, from)) {
        return false;
      }
    }
    return true;
  }

  /// In rank order, as many sources at a time as a reduction takes; this rank's slot holds what is reduced so far.
  void reduce(const ConstBufferView& own, const BufferView& result, const Combination& combine) noexcept {
    for (int rank = 0; rank < lane_.size(); ++rank) {
      sources_[static_cast<std::size_t>(rank)] = rank == lane_.rank() ? own.data : slot(rank);
    }
    BufferView partial = result;
    partial.data = slot(lane_.rank());
    std::span<const std::byte*> rest(sources_);
    while (rest.size() > kernels::Reduction::max_sources) {
      combine(rest.first(kernels::Reduction::max_sources), partial, false);
      rest = rest.subspan(kernels::Reduction::max_sources - 1);
      rest.front() = partial.data;
    }
    combine(rest, result, true);
  }

  bool pull(const BufferView& output, std::size_t length, std::size_t index) {
    for (int round = 1; round < lane_.size(); ++round) {
      const int to = serves(lane_.rank()) ? around(round) : nobody;
      const int from = serves(around(-round)) ? around(-round) : nobody;
      const Part sent = to == nobody ? Part{} : piece_of(shard(output, lane_.rank()), length, index);
      const Part taken = from == nobody ? Part{} : piece_of(shard(output, from), length, index);
      if (!lane_.exchange(view_of(output, sent), to, view_of(output, taken), from)) {
        return false;
      }
    }
    return true;
  }

  Lane<typename B::Communicator> lane_;
  std::size_t bytes_;                      ///< of a piece
  std::unique_ptr<std::byte[]> received_;  ///< a server's: a piece of each rank
  std::vector<const std::byte*> sources_;
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
