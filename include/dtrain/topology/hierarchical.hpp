#pragma once
/// @file
/// topology::Hierarchical: two-level collectives, inside nodes by one backend and across nodes by another.

#include <string_view>
#include <type_traits>

#include "dtrain/backend/backend.hpp"
#include "dtrain/topology/algorithm_communicator.hpp"
#include "dtrain/topology/hierarchical/collectives.hpp"
#include "dtrain/topology/topology.hpp"
#include "dtrain/topology/wire.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// A backend that Hierarchical can use inside nodes.
/// @ingroup topologies
template <class I>
concept ReducesInNodes = backend::OnHostStreams<I> && backend::CanReduceScatter<typename I::Communicator> &&
    backend::CanAllGather<typename I::Communicator>;

/// Two levels: the ranks of each node reduce with one backend, and the nodes with the policy's backend.
/// `IntraBackend`: backend inside a node (backend::SharedMemory, for example); void: the policy's backend.
/// `WireType`: the type of f32 elements between nodes (wire.hpp).
/// @ingroup topologies
template <class IntraBackend = void, class WireType = wire::Same>
struct Hierarchical {
  static constexpr std::string_view name() noexcept { return "Hierarchical"; }

  template <class B>
  using Intra = std::conditional_t<std::is_void_v<IntraBackend>, B, IntraBackend>;

  template <class B>
  static constexpr bool supports_backend = backend::OnHostStreams<B>&& ReducesInNodes<Intra<B>>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(backend::OnHostStreams<B>,
                  "dtrain: topology::Hierarchical needs a backend on host streams "
                  "(backend::OnHostStreams in dtrain/backend/backend.hpp)");
    static_assert(!backend::OnHostStreams<B> || ReducesInNodes<Intra<B>>,
                  "dtrain: topology::Hierarchical needs a backend with reduce_scatter and all_gather on host streams "
                  "inside the nodes: give one, as in Hierarchical<backend::SharedMemory> "
                  "(CanReduceScatter, CanAllGather in dtrain/backend/communicator.hpp)");
  }

  template <class B>
  using Rebind = AlgorithmBackend<B, HierarchicalCollectives<B, Intra<B>, WireType>>;
};

static_assert(Topology<Hierarchical<>>);

}  // namespace DTRAIN_NAMESPACE::topology
