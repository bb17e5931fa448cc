#pragma once
/// @file
/// Which node a per-node launcher runs on, among how many: a pure function of flags and environment.

#include <optional>
#include <string>
#include <vector>

#include "dtrain/identity/resolve.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// The launcher's flags as they were given, unread. A flag wins over the environment, field by field.
struct NodeFlags {
  std::optional<std::string> node_count;      ///< --nnodes
  std::optional<std::string> node_rank;       ///< --node-rank
  std::optional<std::string> master_addr;     ///< --master-addr
  std::optional<std::string> master_port;     ///< --master-port
  std::optional<std::string> nproc_per_node;  ///< --nproc-per-node
};

struct NodeIdentity {
  int node_rank = 0;
  int node_count = 1;
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;             ///< nothing: the launcher binds port 0
  std::optional<std::string> nproc_per_node;  ///< decimal digits or "auto"
  std::string launcher;
  std::vector<std::string> provisional;
  std::vector<std::string> warnings;
};

namespace detail {

/// The flags as variables of their own, so that they are read and named like any other.
inline Environment with_flags(const Environment& environment, const NodeFlags& flags) {
  Environment joined = environment;
  const auto put = [&joined](const char* flag, const std::optional<std::string>& value) {
    if (value) {
      joined[flag] = *value;
    }
  };
  put("--nnodes", flags.node_count);
  put("--node-rank", flags.node_rank);
  put("--master-addr", flags.master_addr);
  put("--master-port", flags.master_port);
  put("--nproc-per-node", flags.nproc_per_node);
  return joined;
}

/// A number of nodes. @throws IdentityError (elastic-range for "1:4", bad-integer).
inline std::optional<int> node_count(const Variables& variables, const char* variable) {
  const std::optional<std::string> value = variables.text(variable);
  if (value && value->find(':') != std::string::npos) {
    throw IdentityError(IdentityErrc::elastic_range,
                        quoted(variable, *value) + " is a range of nodes; a job has a fixed size here: set one number");
  }
  return variables.count(variable);
}

/// The process rules with the process as the node: one launcher was started where a process would have been.
inline void read_process_as_node(const Environment& environment, const Variables& variables, NodeIdentity& node) {
  Environment process = environment;
  process.erase("PET_NNODES");  // what describes a node is right here
  process.erase("PET_NPROC_PER_NODE");
  for (const char* given : {"PET_MASTER_ADDR", "--master-addr"}) {
    if (const std::optional<std::string> address = variables.text(given)) {
      process["MASTER_ADDR"] = *address;
    }
  }
  const ProcessIdentity who = process_identity(process);
  node.node_rank = who.rank;
  node.node_count = who.world_size;
  node.launcher = who.launcher;
  node.warnings = who.warnings;
}

/// Node rank and count of the first pair that is whole. @returns whether there was one.
inline bool read_pair(const Variables& variables, const char* rank_name, const char* count_name, const char* launcher,
                      NodeIdentity& node) {
  if (!variables.has(rank_name) || !variables.has(count_name)) {
    return false;
  }
  node.node_rank = *variables.integer(rank_name);
  node.node_count = *node_count(variables, count_name);
  node.launcher = launcher;
  return true;
}

inline void read_node_pair(const Environment& environment, const Variables& variables, NodeIdentity& node) {
  const bool flags_are_whole =
      read_pair(variables, "--node-rank", "--nnodes", "node", node) || node_count(variables, "--nnodes") == 1;
  if (flags_are_whole) {
    node.launcher = "node";
    return;
  }
  const std::optional<std::string> wanted = variables.text("DTRAIN_LAUNCHER");
  const auto pair = [&](const char* rank_name, const char* count_name, const char* launcher) {
    return (!wanted || *wanted == launcher) && read_pair(variables, rank_name, count_name, launcher, node);
  };
  const bool environment_is_whole =
      pair("DTRAIN_NODE_RANK", "DTRAIN_NODE_COUNT", "node") || pair("PET_NODE_RANK", "PET_NNODES", "pet") ||
      pair("NODE_RANK", "AZUREML_NODE_COUNT", "node") || pair("NODE_RANK", "NNODES", "node");
  if (!environment_is_whole) {
    read_process_as_node(environment, variables, node);
  }
  node.node_rank = variables.integer("--node-rank").value_or(node.node_rank);
  node.node_count = node_count(variables, "--nnodes").value_or(node.node_count);
}

}  // namespace detail

/// Which node the launcher with these flags and this environment is. Pure.
/// @throws IdentityError where they contradict themselves or say only half.
inline NodeIdentity node_identity(const Environment& environment, const NodeFlags& flags = {}) {
  const Environment joined = detail::with_flags(environment, flags);
  const Variables variables(joined);
  NodeIdentity node;
  detail::read_node_pair(joined, variables, node);
  if (node.node_rank >= node.node_count) {
    throw IdentityError(IdentityErrc::rank_out_of_range,
                        "node rank " + std::to_string(node.node_rank) + " is not below node count " +
                            std::to_string(node.node_count) + "; set both (--node-rank, --nnodes), counting from 0");
  }
  const bool one_node = node.node_count == 1;
  std::optional<std::string> address;
  for (const char* variable : {"--master-addr", "PET_MASTER_ADDR", "MASTER_ADDR"}) {
    address = address ? address : variables.text(variable);
  }
  if (!address && !one_node) {
    throw IdentityError(IdentityErrc::no_master_addr,
                        "MASTER_ADDR is not set for " + std::to_string(node.node_count) +
                            " nodes; give every launcher --master-addr=HOST, the host of node 0");
  }
  node.master_addr = address.value_or("127.0.0.1");
  for (const char* variable : {"--master-port", "PET_MASTER_PORT", "MASTER_PORT"}) {
    node.master_port = node.master_port ? node.master_port : variables.port(variable);
  }
  if (!node.master_port && !one_node) {
    node.master_port = default_master_port;
  }
  for (const char* variable : {"--nproc-per-node", "PET_NPROC_PER_NODE"}) {
    if (!node.nproc_per_node && variables.has(variable) && variables.text(variable) != "auto") {
      variables.count(variable);
    }
    node.nproc_per_node = node.nproc_per_node ? node.nproc_per_node : variables.text(variable);
  }
  return node;
}

}  // namespace DTRAIN_NAMESPACE::identity
