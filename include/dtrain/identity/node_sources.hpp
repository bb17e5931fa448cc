#pragma once
/// @file
/// Node sources of a launcher, in order of precedence: pairs of node variables; one launcher on each node under mpirun
/// or srun; a process's identity, read as the node's.

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/identity/node_facts.hpp"
#include "dtrain/identity/process_sources.hpp"
#include "dtrain/identity/resolve_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// A pair of variables with node rank and node count.
struct NodePair {
  std::string_view launcher;
  const char* rank;
  const char* count;
};

inline constexpr std::array<NodePair, 4> node_pairs{{
    {"node", "DTRAIN_NODE_RANK", "DTRAIN_NODE_COUNT"},
    {"pet", "PET_NODE_RANK", "PET_NNODES"},
    {"node", "NODE_RANK", "AZUREML_NODE_COUNT"},
    {"node", "NODE_RANK", "NNODES"},
}};

namespace detail {

/// The first complete pair of the wanted launcher. A flag may replace either variable of a pair.
inline std::optional<NodeFacts> read_node_pair(const Variables& variables, const std::optional<std::string>& wanted) {
  for (const NodePair& pair : node_pairs) {
    const bool has_rank = variables.has(pair.rank);
    const bool has_count = variables.has(pair.count);
    const bool whole = (has_rank || variables.has("--node-rank")) && (has_count || variables.has("--nnodes"));
    if ((wanted && *wanted != pair.launcher) || !whole) {
      continue;
    }
    NodeFacts node;
    node.launcher = pair.launcher;
    node.node_rank = has_rank ? *variables.integer(pair.rank) : 0;  // the flag overrides it later
    node.node_count = has_count ? *read_node_count(variables, pair.count) : 1;
    return node;
  }
  return std::nullopt;
}

/// A process's identity, used as the node's.
inline NodeFacts node_of(const ProcessIdentity& identity) {
  NodeFacts node;
  node.launcher = identity.launcher;
  node.node_rank = identity.rank;
  node.node_count = identity.world_size;
  node.master_addr = identity.master_addr;
  node.master_port = identity.master_port;
  node.master_is_guess = identity.is_provisional("master_addr");
  return node;
}

[[noreturn]] inline void refuse_many(const std::string& launcher, const std::string& stated,
                                     const std::string& remedy) {
  throw IdentityError(IdentityErrc::many_launchers,
                      launcher + " started several launchers on one node (" + stated +
                          "); the per-node launcher wants one, and starts the node's ranks itself: " + remedy +
                          "; a program that is started once for each rank has launch::PerProcess in its policy");
}

inline NodeFacts read_mpirun_node(const Variables& variables) {
  const std::optional<int> local_size = variables.integer(OpenMpiSource::names.local_world_size);
  if (local_size.value_or(1) > 1) {
    refuse_many("mpirun", OpenMpiSource::names.stated(variables),
                "mpirun -npernode 1 (Azure ML: process_count_per_node=1)");
  }
  return node_of(OpenMpiSource::read(variables, {}));
}

/// @pre srun started one task on each node of the step; otherwise every launcher throws IdentityError (many-launchers)
inline NodeFacts read_srun_node(const Variables& variables) {
  const ProcessIdentity identity = SlurmSource::read(variables, {});
  const std::optional<int> nodes = variables.count("SLURM_STEP_NUM_NODES");
  if (identity.local_world_size.value_or(1) > 1 || (nodes && *nodes < identity.world_size)) {
    refuse_many("srun", SlurmSource::stated(variables), "srun --ntasks-per-node=1");
  }
  NodeFacts node = node_of(identity);
  node.node_rank = identity.node_rank.value_or(identity.rank);
  node.node_count = nodes.value_or(identity.world_size);
  return node;
}

/// Warns about a launcher in a batch script: its allocation has several nodes, but the launcher runs once.
inline std::vector<std::string> allocation_warnings(const Variables& variables) {
  const std::optional<int> nodes = parse_integer(variables.text("SLURM_JOB_NUM_NODES").value_or(""));
  if (!variables.has("SLURM_JOB_ID") || nodes.value_or(1) < 2) {
    return {};
  }
  return {"Slurm job of " + std::to_string(*nodes) +
          " nodes, not started with srun: this is one node; start it with srun --ntasks-per-node=1 for all"};
}

/// @throws IdentityError (unknown-launcher) if DTRAIN_LAUNCHER names an incomplete pair
inline void check_wanted_pair(const Variables& variables, const std::optional<std::string>& wanted) {
  if (wanted != "node" && wanted != "pet") {
    return;
  }
  std::string there;
  for (const NodePair& pair : node_pairs) {
    const bool whole = variables.has(pair.rank) && variables.has(pair.count);
    there += whole && there.find(pair.launcher) == std::string::npos ? std::string(pair.launcher) + ", " : "";
  }
  refuse_launcher(*wanted, there + names_of_present(variables));
}

/// Checks that a number of nodes has a node rank, too. @throws IdentityError: no-rank, elastic-range
inline void check_unpaired_count(const Variables& variables) {
  for (const auto& [count, rank] : {std::pair("--nnodes", "--node-rank"), std::pair("PET_NNODES", "PET_NODE_RANK"),
                                    std::pair("DTRAIN_NODE_COUNT", "DTRAIN_NODE_RANK")}) {
    const std::optional<int> nodes = read_node_count(variables, count);
    if (nodes.value_or(1) > 1 && !variables.has("--node-rank") && !variables.has(rank)) {
      throw IdentityError(IdentityErrc::no_rank, variables.stated({count}) +
                                                     " says how many nodes there are, but not " +
                                                     "which of them this is; set " + rank + " to 0.." +
                                                     std::to_string(*nodes - 1) + ", another on each node");
    }
  }
}

}  // namespace detail

/// Node rank and count from the environment, which includes the flags (see with_flags). The caller lets rank and count
/// flags override the result. @throws IdentityError if the environment is contradictory or incomplete
inline NodeFacts node_facts(const Environment& environment, const Variables& variables) {
  const std::optional<std::string> wanted = variables.text("DTRAIN_LAUNCHER");
  if (const std::optional<NodeFacts> pair = detail::read_node_pair(variables, wanted)) {
    return *pair;
  }
  if (OpenMpiSource::present(variables) && wanted.value_or(OpenMpiSource::name) == OpenMpiSource::name) {
    return detail::read_mpirun_node(variables);
  }
  if (SlurmSource::present(variables) && wanted.value_or(SlurmSource::name) == SlurmSource::name) {
    return detail::read_srun_node(variables);
  }
  detail::check_wanted_pair(variables, wanted);
  Environment process = environment;
  process.erase("PET_NNODES");  // process_identity() would reject variables that describe a node
  process.erase("PET_NPROC_PER_NODE");
  const ProcessIdentity identity = process_identity(process);
  NodeFacts node = detail::node_of(identity);
  if (identity.launcher != SingleSource::name) {
    node.warnings = identity.warnings;
  } else if (!wanted) {
    detail::check_unpaired_count(variables);
    node.warnings = detail::allocation_warnings(variables);
  }
  return node;
}

}  // namespace DTRAIN_NAMESPACE::identity
