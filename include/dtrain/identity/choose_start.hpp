#pragma once
/// @file
/// choose_start(): how launch::Any starts a process with these variables and arguments. Pure; of its rules the first
/// that holds decides.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// How launch::Any starts a process.
/// @ingroup launchers
enum class Start : std::uint8_t {
  per_node,     ///< launch::PerNode: a launcher, its worker, or what --in-process and --help-launch ask for
  per_process,  ///< launch::PerProcess
  alone,        ///< rank 0 of 1, on a node whose variables the backend cannot follow; see needs_process_per_rank
  rejected,     ///< workers were asked for, which the backend takes from another launcher; see there
};

/// launch::PerNode's flags that ask it for workers. "--nproc" and "--nprocs" are other launchers' names of the first.
inline constexpr std::array<std::string_view, 8> worker_flags{"--nproc-per-node", "--nproc",     "--nprocs",
                                                              "--nnodes",         "--node-rank", "--min-ranks",
                                                              "--max-restarts",   "--wrap-rank"};
/// launch::PerNode's flags by which it starts no worker.
inline constexpr std::array<std::string_view, 2> workerless_flags{"--in-process", "--help-launch"};

/// Another, which programs of launch::PerProcess may have as their own.
inline constexpr std::string_view status_flag = "--status";

/// The first argument that is one of the flags, as it is written ('_' counts as '-'; a value may follow '='); empty:
/// none. Ignores the program's name, and arguments after "--".
template <class Texts>
std::string_view first_flag(const Texts& arguments, std::span<const std::string_view> flags) {
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--") break;
    std::string name(argument.substr(0, argument.find('=')));
    std::replace(name.begin(), name.end(), '_', '-');
    if (std::find(flags.begin(), flags.end(), name) != flags.end()) return argument;
  }
  return {};
}

/// @param environment of a worker of launch::PerNode: as it is; of other processes: without the variables of a worker
/// that has started them (launch::without_outer_job)
/// @param needs_process_per_rank whether the backend takes its ranks from another launcher, as MPI does
/// @throws IdentityError as check_complete(), if nothing starts this process and it seems to be one of several
/// @ingroup launchers
Start choose_start(const Environment& environment, Arguments arguments, bool needs_process_per_rank = false);

}  // namespace DTRAIN_NAMESPACE::identity

#if DTRAIN_DEFINITIONS

#include <optional>

#include "dtrain/identity/node_identity.hpp"
#include "dtrain/identity/process_sources.hpp"
#include "dtrain/identity/resolve_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

/// A pod of Kubeflow: PET_NNODES and PET_NODE_RANK describe it, RANK, if it is set, is the pod's, and nothing in the
/// pod has started processes yet.
inline bool is_pod_without_ranks(const Variables& variables, Arguments arguments) {
  return variables.has("PET_NNODES") && variables.has("PET_NODE_RANK") && !variables.has("LOCAL_RANK") &&
         !local_rank_argument(arguments) &&
         std::all_of(launchers.begin(), launchers.end(), [&](const IdentitySource& source) {
           return source.name == TorchSource::name || !source.present(variables);
         });
}

/// Whether a pair other than PET_NODE_RANK and PET_NNODES is whole.
inline bool states_node(const Variables& variables) {
  return std::any_of(node_pairs.begin(), node_pairs.end(), [&](const NodePair& pair) {
    return pair.launcher == "node" && variables.has(pair.rank) && variables.has(pair.count);
  });
}

}  // namespace detail

DTRAIN_DEFINED Start choose_start(const Environment& environment, Arguments arguments, bool needs_process_per_rank) {
  const Variables variables(environment);
  const Start workers = needs_process_per_rank ? Start::rejected : Start::per_node;
  const Start one_worker = needs_process_per_rank ? Start::per_process : Start::per_node;
  if (variables.has("DTRAIN_LAUNCHER_PROCESS") || !first_flag(arguments, workerless_flags).empty() ||
      !first_flag(arguments, std::span(&status_flag, 1)).empty()) {
    return Start::per_node;
  }
  if (!first_flag(arguments, worker_flags).empty()) {
    return workers;
  }
  if (const std::optional<std::string_view> wanted = variables.text("DTRAIN_LAUNCHER")) {
    return wanted == "node" || wanted == "pet" ? workers : wanted == "none" ? one_worker : Start::per_process;
  }
  if (states_elastic_range(variables)) {  // process_identity() says so to a program that takes a group
    return Start::per_process;
  }
  if (detail::is_pod_without_ranks(variables, arguments)) {
    return workers;
  }
  for (const IdentitySource& source : detail::launchers) {
    if (source.present(variables)) {
      return Start::per_process;
    }
  }
  if (detail::states_node(variables)) {
    return needs_process_per_rank ? Start::alone : Start::per_node;
  }
  check_complete(variables);
  return one_worker;
}

}  // namespace DTRAIN_NAMESPACE::identity

#endif  // DTRAIN_DEFINITIONS
