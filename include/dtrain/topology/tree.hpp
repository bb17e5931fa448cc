#pragma once
/// @file
/// topology::Tree: all-reduce up a binary tree, then broadcast down the tree. A program names it in its Policy.

#include <string_view>

#include "dtrain/backend/message_passing/algorithms/tree.hpp"
#include "dtrain/topology/backend_with_algorithm.hpp"
#include "dtrain/topology/topology.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Reduce and broadcast along one tree: about 2 log2(n) steps, for small buffers on many ranks. Sanders, Speck and
/// Traeff ("Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009) balance the links with two
/// trees. Tree has one tree: if links are the limit, Ring sends less.
/// @ingroup topologies
struct Tree {
  static constexpr std::string_view name() noexcept { return "Tree"; }

  template <class B>
  static constexpr bool supports_backend = SelectsAllReduce<B>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(supports_backend<B>,
                  "dtrain: topology::Tree needs a backend with send and recv on host streams, and an endpoint "
                  "(SelectsAllReduce in dtrain/topology/backend_with_algorithm.hpp)");
  }

  template <message_passing::Endpoint E>
  static message_passing::Routine all_reduce(message_passing::OperationContext<E>& context,
                                             const message_passing::Buffers& buffers) {
    return message_passing::tree(context, buffers);
  }

  template <class B>
  using Rebind = BackendWithAlgorithm<B, Tree>;
};

static_assert(Topology<Tree>);

}  // namespace DTRAIN_NAMESPACE::topology
