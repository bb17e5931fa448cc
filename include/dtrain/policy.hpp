#pragma once
/// @file
/// dtrain::Policy: launcher, backend and topology of a job, as one type; a wrong one fails to compile with a sentence.

#include "dtrain/backend/backend.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/launch/launcher.hpp"
#include "dtrain/topology/topology.hpp"

namespace DTRAIN_NAMESPACE {

/// Launcher, backend and topology of a job. Types that do not fit together fail to compile, with one sentence that
/// names the missing member and the header with the contract.
/// @ingroup jobs
template <class LauncherType, class BackendType, class TopologyType = topology::Flat>
struct Policy {
  using Launcher = LauncherType;
  using Backend = BackendType;
  using Topology = TopologyType;

  static constexpr bool has_launcher = launch::Launcher<Launcher>;
  static_assert(
      has_launcher,
      "dtrain: the first type of Policy must be a launcher: launch::Any, launch::PerNode or launch::PerProcess "
      "(contract: the concept launch::Launcher, in dtrain/launch/launcher.hpp)");

  /// Backends of libraries are declared alone where their macro is not set.
  static constexpr bool is_defined = requires { sizeof(Backend); };
  static_assert(is_defined,
                "dtrain: this backend is declared and not defined, because its library is not switched on: Mpi and "
                "MpiCollectives need -DDTRAIN_WITH_MPI=1 (with CMake: link dtrain::mpi), Gloo -DDTRAIN_WITH_GLOO=1 "
                "(dtrain::gloo), Nccl -DDTRAIN_WITH_NCCL=1 (dtrain::nccl), Staged -DDTRAIN_WITH_CUDA=1 (dtrain::cuda)");

  static constexpr bool has_backend = backend::Backend<Backend>;
  static_assert(has_backend || !is_defined,
                "dtrain: the second type of Policy must be a backend, such as backend::SharedMemory "
                "(contract: the concept backend::Backend, in dtrain/backend/backend.hpp)");

  static constexpr bool has_topology = topology::Topology<Topology>;
  static_assert(has_topology,
                "dtrain: the third type of Policy must be a topology, such as topology::Flat "
                "(contract: the concept topology::Topology, in dtrain/topology/topology.hpp)");

  /// A backend that works with some launchers only declares them (works_with).
  static constexpr bool launcher_fits_backend = [] {
    if constexpr (has_launcher && requires { Backend::template works_with<Launcher>; }) {
      return Backend::template works_with<Launcher>;
    }
    return true;
  }();
  static_assert(launcher_fits_backend,
                "dtrain: backend::Mpi needs launch::Any or launch::PerProcess; start one process for each rank with "
                "mpirun or srun (Mpi::works_with, in dtrain/backend/mpi.hpp)");

  /// topology::require fails to compile, with the reason, if the backend lacks an ability that the topology needs.
  static constexpr bool topology_fits_backend = [] {
    if constexpr (has_backend && has_topology) {
      topology::require<Topology, Backend>();
    }
    return true;
  }();

  /// Opens the channels of groups and wrappers: the backend, with the topology's algorithms for reductions.
  using ChannelBackend = topology::ChannelBackend<Topology, Backend>;
};

}  // namespace DTRAIN_NAMESPACE
