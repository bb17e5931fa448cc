#pragma once
/// @file
/// topology::Ring: ring all-reduce, in which every rank sends to the next one only. A program names it in its Policy.

#include <string_view>

#include "dtrain/backend/message_passing/algorithms/ring_collectives.hpp"
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

static_assert(Topology<Ring>);

}  // namespace DTRAIN_NAMESPACE::topology
