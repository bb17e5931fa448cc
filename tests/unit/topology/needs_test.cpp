#include "support/memory_endpoint.hpp"
#include "unit/topology/prelude.hpp"

namespace {

using dtrain::backend::Determinism;
using dtrain::backend::determinism_of;

template <CommunicatorLacks Lack>
using HostCommunicator = archetype::Communicator<Lack, dtrain::stream::host::StreamRef>;

/// A backend on host streams whose communicator lacks an endpoint.
struct WithoutEndpoint
    : archetype::Backend<archetype::BackendLacks::nothing, HostCommunicator<CommunicatorLacks::nothing>> {
  using StreamOwner = dtrain::stream::host::CommunicationStream;
};

/// A backend on host streams whose communicator has an endpoint, and lacks one ability.
template <CommunicatorLacks Lack = CommunicatorLacks::nothing>
struct OnHost : archetype::Backend<archetype::BackendLacks::nothing, HostCommunicator<Lack>> {
  struct Communicator : HostCommunicator<Lack> {
    using Endpoint = support::MemoryEndpoint;
  };
  using SelectedAllReduce = dtrain::backend::message_passing::SelectedAllReduce<typename Communicator::Endpoint>;
  using StreamOwner = dtrain::stream::host::CommunicationStream;
  static Communicator open_blocking(const dtrain::backend::ChannelContext&, dtrain::Deadline,
                                    const SelectedAllReduce& = {}) {
    return {};
  }
};

template <class Topology>
void check_needs_messages() {
  CHECK(SupportsBackend<Topology, OnHost<>>);
  CHECK(SupportsBackend<Topology, OnHost<CommunicatorLacks::split>>);
  CHECK(SupportsBackend<Topology, OnHost<CommunicatorLacks::reduce_scatter>>);
  CHECK_FALSE(SupportsBackend<Topology, OnHost<CommunicatorLacks::send>>);
  CHECK_FALSE(SupportsBackend<Topology, OnHost<CommunicatorLacks::recv>>);
  CHECK_FALSE(SupportsBackend<Topology, OnHost<CommunicatorLacks::send_recv>>);
  CHECK_FALSE(SupportsBackend<Topology, OnHost<CommunicatorLacks::abort>>);
  CHECK_FALSE(SupportsBackend<Topology, WithoutEndpoint>);
  CHECK_FALSE(SupportsBackend<Topology, archetype::Backend<>>);  // its streams are not the host's
}

template <class B>
struct Unsure : B {
  static constexpr Determinism determinism = Determinism::none;
};

}  // namespace

TEST_CASE("rings, trees and servers need messages and an endpoint on host streams, and nothing else") {
  check_needs_messages<Ring>();
  check_needs_messages<Tree>();
  check_needs_messages<ParameterServer<2>>();
}

TEST_CASE("nodes need reduce_scatter and all_gather inside, and neither between them") {
  using Bare = OnHost<CommunicatorLacks::send>;
  CHECK(SupportsBackend<Hierarchical<>, Bare>);
  CHECK_FALSE(SupportsBackend<Hierarchical<>, OnHost<CommunicatorLacks::reduce_scatter>>);
  CHECK_FALSE(SupportsBackend<Hierarchical<>, OnHost<CommunicatorLacks::all_gather>>);
  CHECK(SupportsBackend<Hierarchical<SharedMemory>, OnHost<CommunicatorLacks::all_gather>>);
  CHECK_FALSE(SupportsBackend<Hierarchical<OnHost<CommunicatorLacks::all_gather>>, SharedMemory>);
  CHECK_FALSE(SupportsBackend<Hierarchical<>, archetype::Backend<>>);
}

TEST_CASE("a topology can lie over what a topology made") {
  CHECK(SupportsBackend<Hierarchical<SharedMemory>, Ring::Rebind<SharedMemory>>);
  CHECK(SupportsBackend<Hierarchical<Tree::Rebind<SharedMemory>>, Ring::Rebind<SharedMemory>>);
}

TEST_CASE(
    "SharedMemory promises the same bits always, its topologies for a plan, and an unsure backend passes that on") {
  CHECK(determinism_of<SharedMemory> == Determinism::always);
  CHECK(determinism_of<Ring::Rebind<SharedMemory>> == Determinism::for_a_plan);
  CHECK(determinism_of<Tree::Rebind<Unsure<SharedMemory>>> == Determinism::for_a_plan);  // it only carries messages
  CHECK(determinism_of<ParameterServer<>::Rebind<SharedMemory>> == Determinism::for_a_plan);
  CHECK(determinism_of<Hierarchical<>::Rebind<SharedMemory>> == Determinism::for_a_plan);
  CHECK(determinism_of<Hierarchical<>::Rebind<Unsure<SharedMemory>>> == Determinism::none);
  CHECK(determinism_of<Hierarchical<Unsure<SharedMemory>>::Rebind<SharedMemory>> == Determinism::none);
  CHECK(determinism_of<OnHost<>> == Determinism::none);
}
