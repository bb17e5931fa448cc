#pragma once
/// @file
/// topology::FlatOver: the backend's own all_reduce, which sends sums and averages of f32 in 16 bits.

#include <optional>
#include <span>
#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/compressed_traffic.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/topology/algorithm_communicator.hpp"
#include "dtrain/topology/sub_channel.hpp"
#include "dtrain/topology/topology.hpp"
#include "dtrain/topology/wire.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Each rank rounds its elements once. The backend's own all-reduce adds the rounded elements, with the precision of
/// its 16-bit sums (GroupOptions::accumulate). Rounding is elementwise, so that results are as reproducible as the
/// backend's.
template <class B, class WireType>
class FlatReduction {
 public:
  using Allocation = typename B::Communicator::Allocation;
  static constexpr backend::Determinism determinism = backend::determinism_of<B>;
  static constexpr std::string_view name() noexcept { return "FlatOver"; }
  static constexpr bool reduces(DType dtype) noexcept { return B::reduces(dtype); }

  /// Collective, blocking.
  FlatReduction(const backend::ChannelContext& context, Deadline deadline)
      : ranks_(context.members.world_size), channel_(B::open_blocking(named(context), deadline)) {}

  /// Collective, blocking. Allocates memory that the backend reduces without a copy.
  Allocation allocate_blocking(std::size_t bytes, Deadline deadline) {
    return channel_.communicator().allocate_blocking(bytes, deadline);
  }

  /// The variant Flat uses the same channel, in whose memory the gradients may be.
  std::span<const AllReduceVariant> variants() const noexcept {
    static constexpr AllReduceVariant all[] = {
        {WireType::dtype == DType::bf16 ? "FlatOver in bf16" : "FlatOver in f16"}, {"Flat", true, false}};
    return ranks_ == 1 ? std::span<const AllReduceVariant>() : all;
  }

  bool run(const backend::AllReduce& call, bool casts) {
    if (!casts || ranks_ == 1 || !wire_.casts(call.output.dtype, call.op)) {
      return channel_.run(call);
    }
    copy(call.input, call.output);
    return wire_.all_reduce(call.output, call.op, ranks_, [&](const BufferView& sent, ReduceOp by) {
      return channel_.run(backend::AllReduce{sent, sent, by});
    });
  }

  void abort(const Cause& cause) noexcept { channel_.abort(cause); }
  std::optional<Cause> failure() const { return channel_.failure(); }
  CompressedTraffic compressed_traffic() const noexcept { return wire_.traffic(); }

 private:
  static backend::ChannelContext named(backend::ChannelContext context) {
    context.name += "/wire";
    return context;
  }

  int ranks_;
  WireReduction<WireType> wire_;
  SubChannel<typename B::Communicator> channel_;
};

/// As Flat, but all_reduce sends sums and averages of f32 in 16 bits. `WireType`: wire::Bf16 or wire::F16.
/// @ingroup topologies
template <class WireType>
struct FlatOver {
  static_assert(narrows<WireType>,
                "dtrain: topology::FlatOver is for wire::Bf16 or wire::F16; topology::Flat sends elements as they are");

  static constexpr std::string_view name() noexcept { return "FlatOver"; }

  template <class B>
  static constexpr bool supports_backend = backend::OnHostStreams<B>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(supports_backend<B>,
                  "dtrain: topology::FlatOver needs a backend on host streams "
                  "(backend::OnHostStreams in dtrain/backend/backend.hpp)");
  }

  template <class B>
  using Rebind = AlgorithmBackend<B, FlatReduction<B, WireType>>;
};

static_assert(Topology<FlatOver<wire::Bf16>>);

}  // namespace DTRAIN_NAMESPACE::topology
