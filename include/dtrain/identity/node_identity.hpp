#pragma once
/// @file
/// NodeIdentity: node rank, node count and store address of a node's launcher, from flags or variables. Pure.

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/process_sources.hpp"
#include "dtrain/identity/resolve_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// The launcher's flags as unparsed text. Each flag overrides the environment's variables for its field.
struct NodeFlags {
  std::optional<std::string> node_count;      ///< --nnodes
  std::optional<std::string> node_rank;       ///< --node-rank
  std::optional<std::string> master_addr;     ///< --master-addr
  std::optional<std::string> master_port;     ///< --master-port
  std::optional<std::string> nproc_per_node;  ///< --nproc-per-node
  bool is_elastic = false;                    ///< the program's: --nnodes and PET_NNODES may be MIN:MAX
};

/// A launcher's node in its job, and the address of the launchers' store.
/// @ingroup launchers
struct NodeIdentity {
  DTRAIN_MEMBERS_NOT_INLINED(NodeIdentity);

  int node_rank = 0;
  int node_count = 1;
  int least_nodes = 0;                        ///< MIN of an elastic job with MIN:MAX nodes; 0: the number is fixed
  std::string master_addr;                    ///< empty in a source that does not state it
  std::optional<int> master_port;             ///< nullopt: the launcher binds port 0
  std::optional<std::string> nproc_per_node;  ///< decimal digits or "auto"
  std::string launcher;
  std::vector<std::string> provisional;
  std::vector<std::string> warnings;

  friend bool operator==(const NodeIdentity&, const NodeIdentity&) = default;
};

/// `environment` with each flag as an entry under its own name ("--nnodes"). Therefore flags are read, and named in
/// sentences, like variables.
inline Environment with_flags(const Environment& environment, const NodeFlags& flags) {
  Environment joined = environment;
  const auto put = [&joined](const char* flag, const std::optional<std::string>& value) {
    joined.erase(flag);
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

/// Replaces MIN:MAX by MAX in --nnodes and PET_NNODES. @returns MIN of --nnodes, or without the flag of PET_NNODES; 0
/// for one number. @throws IdentityError: bad-integer
inline int take_least_nodes(Environment& environment) {
  int least = 0;
  for (const char* const name : {"PET_NNODES", "--nnodes"}) {
    const std::string range(Variables(environment).text(name).value_or(""));
    if (!is_range(range)) {
      least = range.empty() ? least : 0;
      continue;
    }
    const std::optional<IntegerRange> nodes = parse_range(range);
    if (!nodes) {
      throw_identity_error(IdentityErrc::bad_integer, "{} is no range of nodes; give MIN:MAX, such as 2:4",
                           {quoted(name, range)});
    }
    least = nodes->least;
    environment[name] = std::to_string(nodes->most);
  }
  return least;
}

/// A number of nodes. @throws IdentityError: elastic-range for "1:4", bad-integer
inline std::optional<int> read_node_count(const Variables& variables, const char* variable) {
  const std::optional<std::string_view> value = variables.text(variable);
  if (is_range(value.value_or(""))) {
    throw_identity_error(IdentityErrc::elastic_range,
                         "{} is a range of nodes, which only --nnodes and PET_NNODES may be, for a program whose body "
                         "takes a dtrain::Elastic: else set one number",
                         {quoted(variable, *value)});
  }
  return variables.count(variable);
}

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
inline std::optional<NodeIdentity> read_node_pair(const Variables& variables, std::optional<std::string_view> wanted) {
  for (const NodePair& pair : node_pairs) {
    const bool has_rank = variables.has(pair.rank);
    const bool has_count = variables.has(pair.count);
    const bool whole = (has_rank || variables.has("--node-rank")) && (has_count || variables.has("--nnodes"));
    if ((wanted && *wanted != pair.launcher) || !whole) {
      continue;
    }
    NodeIdentity node;
    node.launcher = pair.launcher;
    node.node_rank = has_rank ? *variables.integer(pair.rank) : 0;  // the flag overrides it later
    node.node_count = has_count ? *read_node_count(variables, pair.count) : 1;
    return node;
  }
  return std::nullopt;
}

/// A process's identity, used as the node's.
inline NodeIdentity node_of(const ProcessIdentity& identity) {
  NodeIdentity node;
  node.launcher = identity.launcher;
  node.node_rank = identity.rank;
  node.node_count = identity.world_size;
  node.master_addr = identity.master_addr.value_or("");
  node.master_port = identity.master_port;
  if (identity.is_provisional("master_addr")) {
    node.provisional.push_back("master_addr");
  }
  return node;
}

[[noreturn]] inline void refuse_many(const char* launcher, const std::string& stated, const char* remedy) {
  throw_identity_error(
      IdentityErrc::many_launchers,
      "{} started several launchers on one node ({}); the per-node launcher wants one, and starts the node's ranks "
      "itself: {}; with launch::Any in the program's policy, leave --nproc-per-node out and each process is a rank",
      {launcher, stated, remedy});
}

inline NodeIdentity read_mpirun_node(const Variables& variables) {
  const std::optional<int> local_size = variables.integer(OpenMpiSource::names.local_world_size);
  if (local_size.value_or(1) > 1) {
    refuse_many("mpirun", OpenMpiSource::names.stated(variables),
                "mpirun -npernode 1 (Azure ML: process_count_per_node=1)");
  }
  return node_of(OpenMpiSource::read(variables, {}));
}

/// @pre srun started one task on each node of the step; otherwise every launcher throws IdentityError (many-launchers)
inline NodeIdentity read_srun_node(const Variables& variables) {
  const ProcessIdentity identity = SlurmSource::read(variables, {});
  const std::optional<int> nodes = variables.count("SLURM_STEP_NUM_NODES");
  if (identity.local_world_size.value_or(1) > 1 || (nodes && *nodes < identity.world_size)) {
    refuse_many("srun", SlurmSource::stated(variables), "srun --ntasks-per-node=1");
  }
  NodeIdentity node = node_of(identity);
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
  return {
      format_text("Slurm job of {} nodes, not started with srun: this is one node; start it with srun "
                  "--ntasks-per-node=1 for all",
                  {*nodes})};
}

/// @throws IdentityError (unknown-launcher) if DTRAIN_LAUNCHER names an incomplete pair
inline void check_wanted_pair(const Variables& variables, std::optional<std::string_view> wanted) {
  if (wanted != "node" && wanted != "pet") {
    return;
  }
  std::string there;
  for (const NodePair& pair : node_pairs) {
    const bool whole = variables.has(pair.rank) && variables.has(pair.count);
    if (whole && there.find(pair.launcher) == std::string::npos) {
      append_text(there, "{}, ", {pair.launcher});
    }
  }
  refuse_launcher(variables, *wanted, there + names_of_present(variables));
}

/// Checks that a number of nodes also has a node rank. @param least_nodes of the variables' MIN:MAX; 0: one number
/// @throws IdentityError: no-rank, elastic-range
inline void check_unpaired_count(const Variables& variables, int least_nodes) {
  for (const auto& [count, rank] : {std::pair("--nnodes", "--node-rank"), std::pair("PET_NNODES", "PET_NODE_RANK"),
                                    std::pair("DTRAIN_NODE_COUNT", "DTRAIN_NODE_RANK")}) {
    const std::optional<int> nodes = read_node_count(variables, count);
    if (nodes.value_or(1) > 1 && !variables.has("--node-rank") && !variables.has(rank)) {
      if (least_nodes != 0) {
        const bool is_pod = variables.has("PET_RDZV_ENDPOINT");
        throw_identity_error(
            IdentityErrc::no_rank,
            "{} says how many nodes there are, but not which of them this is; set {} to 0 on the node whose address is "
            "the MASTER_ADDR of all, and to another number on the others{}",
            {quoted(count, format_text("{}:{}", {least_nodes, *nodes})), rank,
             is_pod ? " (in a pod of Kubeflow: PET_NODE_RANK=${HOSTNAME##*-} MASTER_ADDR=${PET_RDZV_ENDPOINT%:*})"
                    : ""});
      }
      throw_identity_error(
          IdentityErrc::no_rank,
          "{} says how many nodes there are, but not which of them this is; set {} to 0..{}, another on each node",
          {variables.stated({count}), rank, *nodes - 1});
    }
  }
}

}  // namespace detail

/// Node rank, node count and, if a source has them, node 0's address and port, from the environment, which includes the
/// flags (see with_flags). The caller lets flags override the result. @param least_nodes that take_least_nodes took
/// @throws IdentityError if the environment is contradictory or incomplete
inline NodeIdentity node_of_environment(const Environment& environment, const Variables& variables, int least_nodes) {
  const std::optional<std::string_view> wanted = variables.text("DTRAIN_LAUNCHER");
  if (const std::optional<NodeIdentity> pair = detail::read_node_pair(variables, wanted)) {
    return *pair;
  }
  if (OpenMpiSource::names.give_both(variables) && wanted.value_or(OpenMpiSource::name) == OpenMpiSource::name) {
    return detail::read_mpirun_node(variables);
  }
  if (in_slurm_step(variables) && wanted.value_or(SlurmSource::name) == SlurmSource::name) {
    return detail::read_srun_node(variables);
  }
  detail::check_wanted_pair(variables, wanted);
  if (states_elastic_range(variables)) read_node_count(variables, "DTRAIN_WORLD_SIZE");
  Environment process = environment;
  process.erase("PET_NNODES");  // process_identity() would reject variables that describe a node
  process.erase("PET_NPROC_PER_NODE");
  const ProcessIdentity identity = process_identity(process);
  NodeIdentity node = detail::node_of(identity);
  if (identity.launcher != SingleSource::name) {
    node.warnings = identity.warnings;
  } else if (!wanted) {
    detail::check_unpaired_count(variables, least_nodes);
    node.warnings = detail::allocation_warnings(variables);
    SingleSource::warn_of_first_node(variables, node.warnings);
  }
  return node;
}

namespace detail {

/// Node rank and count; flags override the environment. With both flags, or --nnodes=1, the environment is not read.
inline NodeIdentity rank_and_count_of_node(const Environment& joined, const Variables& variables, int least_nodes) {
  const std::optional<int> rank = variables.integer("--node-rank");
  const std::optional<int> count = read_node_count(variables, "--nnodes");
  NodeIdentity node;
  node.launcher = "node";
  if (!(rank && count) && count != 1) {
    Environment with_master = joined;  // sources with a given master neither guess one nor fail without one
    for (const char* given : {"PET_MASTER_ADDR", "--master-addr"}) {
      if (const std::optional<std::string_view> address = variables.text(given)) {
        with_master["MASTER_ADDR"] = *address;
      }
    }
    node = node_of_environment(with_master, Variables(with_master), least_nodes);
  }
  node.node_rank = rank.value_or(node.node_rank);
  node.node_count = count.value_or(node.node_count);
  return node;
}

/// The address of the launchers' store: from flags or variables; else loopback on one node; else the source's.
inline void find_node_master_address(const Variables& variables, NodeIdentity& node) {
  const bool is_one_node = node.node_count == 1;
  std::optional<std::string_view> address;
  for (const char* variable : {"--master-addr", "PET_MASTER_ADDR", "MASTER_ADDR"}) {
    address = address ? address : variables.text(variable);
  }
  if (address || is_one_node) {
    node.master_addr = address.value_or(loopback_address);
    node.provisional.clear();
  } else if (node.master_addr.empty()) {
    throw_identity_error(
        IdentityErrc::no_master_addr,
        "MASTER_ADDR is not set for {} nodes; give every launcher --master-addr=HOST, the host of node 0",
        {node.node_count});
  }
  const std::optional<int> port_of_source = std::exchange(node.master_port, std::nullopt);
  for (const char* variable : {"--master-port", "PET_MASTER_PORT"}) {
    node.master_port = node.master_port ? node.master_port : variables.port(variable);
  }
  const std::optional<int> port = variables.port("MASTER_PORT");
  if (!node.master_port && (port || !is_one_node)) {
    node.master_port = port_of_source ? port_of_source : port.value_or(default_master_port);
  }
}

/// A number of workers in decimal digits, or "auto". @throws IdentityError (bad-integer)
inline std::optional<std::string_view> read_nproc_per_node(const Variables& variables) {
  std::optional<std::string_view> found;
  for (const char* variable : {"--nproc-per-node", "PET_NPROC_PER_NODE"}) {
    const std::optional<std::string_view> value = found ? std::nullopt : variables.text(variable);
    if (value && *value != "auto" && parse_integer(*value).value_or(0) == 0) {
      throw_identity_error(IdentityErrc::bad_integer, "{} is not a number of workers; give 1 or more, or auto",
                           {quoted(variable, *value)});
    }
    found = found ? found : value;
  }
  return found;
}

}  // namespace detail

/// The node identity of a launcher with these flags and this environment. Pure. With MIN:MAX nodes, the rank of a node
/// other than node 0 may be any number: the node is no part of the job's identity.
/// @throws IdentityError if they are contradictory or incomplete
/// @ingroup launchers
inline NodeIdentity node_identity(const Environment& environment, const NodeFlags& flags = {}) {
  Environment joined = with_flags(environment, flags);
  const int least_nodes = flags.is_elastic ? take_least_nodes(joined) : 0;
  const Variables variables(joined);
  NodeIdentity node = detail::rank_and_count_of_node(joined, variables, least_nodes);
  node.least_nodes = least_nodes;
  const bool has_any_rank = least_nodes != 0 && node.node_count > 1;
  if (node.node_rank >= node.node_count && !has_any_rank) {
    throw_identity_error(
        IdentityErrc::rank_out_of_range,
        "node rank {} is not below node count {} ({}); set both (--node-rank, --nnodes), counting from 0",
        {node.node_rank, node.node_count,
         variables.stated({"--node-rank", "--nnodes", "DTRAIN_NODE_RANK", "DTRAIN_NODE_COUNT", "PET_NODE_RANK",
                           "PET_NNODES", "NODE_RANK", "AZUREML_NODE_COUNT", "NNODES"})});
  }
  detail::find_node_master_address(variables, node);
  node.nproc_per_node = detail::read_nproc_per_node(variables);
  return node;
}

}  // namespace DTRAIN_NAMESPACE::identity
