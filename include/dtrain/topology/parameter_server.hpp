#pragma once
/// @file
/// topology::ParameterServer: synchronous parameter server; the first ranks reduce one shard each. A program names it
/// in its Policy.

#include <string_view>

#include "dtrain/backend/message_passing/algorithms/parameter_server.hpp"
#include "dtrain/topology/backend_with_algorithm.hpp"
#include "dtrain/topology/topology.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Servers are ranks 0 to S-1, or all ranks if there are fewer; servers train, too. Every rank sends each server its
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

static_assert(Topology<ParameterServer<>>);

}  // namespace DTRAIN_NAMESPACE::topology
