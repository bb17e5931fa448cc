#include <doctest/doctest.h>

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/stream/host/communication_stream.hpp"
#include "dtrain/topology/hierarchical.hpp"
#include "dtrain/topology/parameter_server.hpp"
#include "dtrain/topology/ring.hpp"
#include "dtrain/topology/tree.hpp"
#include "support/backend_archetypes.hpp"

namespace {

using archetype::CommunicatorLacks;
using dtrain::backend::Determinism;
using dtrain::backend::determinism_of;
using dtrain::backend::SharedMemory;
using dtrain::topology::Hierarchical;
using dtrain::topology::ParameterServer;
using dtrain::topology::Ring;
using dtrain::topology::Tree;
using dtrain::topology::WorksOn;

/// A backend on host streams whose communicator lacks one ability.
template <CommunicatorLacks Lack = CommunicatorLacks::nothing>
struct OnHost : archetype::Backend<archetype::BackendLacks::nothing,
                                   archetype::Communicator<Lack, dtrain::stream::host::StreamRef>> {
  using StreamOwner = dtrain::stream::host::CommunicationStream;
};

template <class Topology>
void check_needs_messages() {
  CHECK(WorksOn<Topology, OnHost<>>);
  CHECK(WorksOn<Topology, OnHost<CommunicatorLacks::split>>);
  CHECK(WorksOn<Topology, OnHost<CommunicatorLacks::reduce_scatter>>);
  CHECK_FALSE(WorksOn<Topology, OnHost<CommunicatorLacks::send>>);
  CHECK_FALSE(WorksOn<Topology, OnHost<CommunicatorLacks::recv>>);
  CHECK_FALSE(WorksOn<Topology, OnHost<CommunicatorLacks::send_recv>>);
  CHECK_FALSE(WorksOn<Topology, OnHost<CommunicatorLacks::abort>>);
  CHECK_FALSE(WorksOn<Topology, archetype::Backend<>>);  // its streams are not the host's
}

template <class B>
struct Unsure : B {
  static constexpr Determinism determinism = Determinism::none;
};

}  // namespace

TEST_CASE("rings, trees and servers need messages on host streams, and nothing else") {
  check_needs_messages<Ring>();
  check_needs_messages<Tree>();
  check_needs_messages<ParameterServer<2>>();
}

TEST_CASE("nodes need reduce_scatter and all_gather inside, and neither between them") {
  using Bare = OnHost<CommunicatorLacks::send>;
  CHECK(WorksOn<Hierarchical<>, Bare>);
  CHECK_FALSE(WorksOn<Hierarchical<>, OnHost<CommunicatorLacks::reduce_scatter>>);
  CHECK_FALSE(WorksOn<Hierarchical<>, OnHost<CommunicatorLacks::all_gather>>);
  CHECK(WorksOn<Hierarchical<SharedMemory>, OnHost<CommunicatorLacks::all_gather>>);
  CHECK_FALSE(WorksOn<Hierarchical<OnHost<CommunicatorLacks::all_gather>>, SharedMemory>);
  CHECK_FALSE(WorksOn<Hierarchical<>, archetype::Backend<>>);
}

TEST_CASE("a topology can lie over what a topology made") {
  CHECK(WorksOn<Hierarchical<SharedMemory>, Ring::Over<SharedMemory>>);
  CHECK(WorksOn<Hierarchical<Tree::Over<SharedMemory>>, Ring::Over<SharedMemory>>);
}

TEST_CASE(
    "SharedMemory promises the same bits always, its topologies for a plan, and an unsure backend passes that on") {
  CHECK(determinism_of<SharedMemory> == Determinism::always);
  CHECK(determinism_of<Ring::Over<SharedMemory>> == Determinism::for_a_plan);
  CHECK(determinism_of<Tree::Over<Unsure<SharedMemory>>> == Determinism::for_a_plan);  // it only carries messages
  CHECK(determinism_of<ParameterServer<>::Over<SharedMemory>> == Determinism::for_a_plan);
  CHECK(determinism_of<Hierarchical<>::Over<SharedMemory>> == Determinism::for_a_plan);
  CHECK(determinism_of<Hierarchical<>::Over<Unsure<SharedMemory>>> == Determinism::none);
  CHECK(determinism_of<Hierarchical<Unsure<SharedMemory>>::Over<SharedMemory>> == Determinism::none);
  CHECK(determinism_of<OnHost<>> == Determinism::none);
}
