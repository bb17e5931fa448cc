#pragma once
/// @file
/// Policy: how processes start, what carries the bytes and along which paths, chosen at compile time.

#include "dtrain/backend/backend.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/launch/launcher.hpp"
#include "dtrain/topology/flat.hpp"
#include "dtrain/topology/topology.hpp"

namespace DTRAIN_NAMESPACE {

/// The three choices of a job. What cannot work together does not compile, in one sentence that names what is missing
/// and the header with the contract.
template <class LauncherType, class BackendType, class TopologyType = topology::Flat>
struct Policy {
  using Launcher = LauncherType;
  using Backend = BackendType;
  using Topology = TopologyType;

  static constexpr bool has_launcher = launch::Launcher<Launcher>;
  static_assert(has_launcher,
                "dtrain: the first type of Policy must be a launcher: launch::PerNode or launch::PerProcess "
                "(contract: dtrain/launch/launcher.hpp)");

  static constexpr bool has_backend = backend::Backend<Backend>;
  static_assert(has_backend,
                "dtrain: the second type of Policy must be a backend, such as backend::SharedMemory "
                "(contract: dtrain/backend/backend.hpp)");

  static constexpr bool has_topology = topology::Topology<Topology>;
  static_assert(has_topology,
                "dtrain: the third type of Policy must be a topology, such as topology::Flat "
                "(contract: dtrain/topology/topology.hpp)");

  /// A backend whose processes another launcher has to start declares it (works_with).
  static constexpr bool launcher_fits_backend = [] {
    if constexpr (has_launcher && requires { Backend::template works_with<Launcher>; }) {
      return Backend::template works_with<Launcher>;
    }
    return true;
  }();
  static_assert(launcher_fits_backend,
                "dtrain: backend::Mpi needs launch::PerProcess; start one process for each rank with mpirun or srun "
                "(works_with in dtrain/backend/mpi.hpp)");

  /// Does not compile where the backend lacks what the topology needs; the topology says what that is.
  static constexpr bool topology_fits_backend = [] {
    if constexpr (has_backend && has_topology) {
      topology::require<Topology, Backend>();
    }
    return true;
  }();

  /// What opens the channels of groups and wrappers: the backend, with reductions along the topology's paths.
  using Channels = topology::Channels<Topology, Backend>;
};

}  // namespace DTRAIN_NAMESPACE
