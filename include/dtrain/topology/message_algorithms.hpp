#pragma once
/// @file
/// topology::Ring, Tree and ParameterServer: all-reduce by an algorithm over messages, in place of the backend's own.

#include <string_view>

#include "dtrain/backend/message_passing/algorithms/parameter_server.hpp"
#include "dtrain/backend/message_passing/algorithms/ring_collectives.hpp"
#include "dtrain/backend/message_passing/algorithms/tree.hpp"
#include "dtrain/topology/backend_with_algorithm.hpp"
#include "dtrain/topology/topology.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Reduce-scatter and all-gather round a ring of n ranks, in 2 (n - 1) steps. Each rank sends 2 (n - 1) / n of the
/// bytes, the minimum. For large buffers; with many ranks, the number of steps makes small buffers slow.
/// @ingroup topologies
struct Ring {
  static constexpr std::string_view name() noexcept { return "Ring"; }

  template <class B>
  static constexpr bool supports_backend = SelectsAllReduce<B>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(supports_backend<B>,
                  "dtrain: topology::Ring needs a backend with send and recv on host streams, and an endpoint "
                  "(SelectsAllReduce in dtrain/topology/backend_with_algorithm.hpp)");
  }

  template <message_passing::Endpoint E>
  static message_passing::Routine all_reduce(message_passing::OperationContext<E>& context,
                                             const message_passing::Buffers& buffers) {
    return message_passing::ring_all_reduce(context, buffers);
  }

  template <class B>
  using Rebind = BackendWithAlgorithm<B, Ring>;
};

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

/// Servers are ranks 0 to S-1, or all ranks if there are fewer; servers also train. Every rank sends each server its
/// shard. The server reduces the shards of all ranks in rank order, as SharedMemory does, and sends the result back.
/// With n ranks, a server's link carries n - 1 times its shard: for few ranks, or for servers with faster links.
/// @ingroup topologies
template <int S = 1>
struct ParameterServer {
  static_assert(S > 0, "dtrain: topology::ParameterServer<S> needs at least one server");

  static constexpr std::string_view name() noexcept { return "ParameterServer"; }

  template <class B>
  static constexpr bool supports_backend = SelectsAllReduce<B>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(
        supports_backend<B>,
        "dtrain: topology::ParameterServer needs a backend with send and recv on host streams, and an endpoint "
        "(SelectsAllReduce in dtrain/topology/backend_with_algorithm.hpp)");
  }

  template <message_passing::Endpoint E>
  static message_passing::Routine all_reduce(message_passing::OperationContext<E>& context,
                                             const message_passing::Buffers& buffers) {
    return message_passing::parameter_server(context, buffers, S);
  }

  template <class B>
  using Rebind = BackendWithAlgorithm<B, ParameterServer<S>>;
};

static_assert(Topology<Ring> && Topology<Tree> && Topology<ParameterServer<>>);

}  // namespace DTRAIN_NAMESPACE::topology
