#pragma once
/// @file
/// Node identity: node rank, node count and store address of a per-node launcher, from flags and environment; pure.

#include <optional>
#include <string>
#include <utility>

#include "dtrain/identity/node_sources.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

/// Node rank and count; flags override the environment. With both flags, or --nnodes=1, the environment is not read.
inline NodeIdentity rank_and_count_of_node(const Environment& joined, const Variables& variables) {
  const std::optional<int> rank = variables.integer("--node-rank");
  const std::optional<int> count = read_node_count(variables, "--nnodes");
  NodeIdentity node;
  node.launcher = "node";
  if (!(rank && count) && count != 1) {
    Environment with_master = joined;  // with a given master, sources neither guess one nor fail without one
    for (const char* given : {"PET_MASTER_ADDR", "--master-addr"}) {
      if (const std::optional<std::string_view> address = variables.text(given)) {
        with_master["MASTER_ADDR"] = *address;
      }
    }
    node = node_of_environment(with_master, Variables(with_master));
  }
  node.node_rank = rank.value_or(node.node_rank);
  node.node_count = count.value_or(node.node_count);
  return node;
}

/// The address of the launchers' store: from flags or variables; else loopback on one node; else the source's.
inline void find_node_master_address(const Variables& variables, NodeIdentity& node) {
  const bool one_node = node.node_count == 1;
  std::optional<std::string_view> address;
  for (const char* variable : {"--master-addr", "PET_MASTER_ADDR", "MASTER_ADDR"}) {
    address = address ? address : variables.text(variable);
  }
  if (address || one_node) {
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
  if (!node.master_port && (port || !one_node)) {
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

/// The node identity of a launcher with these flags and this environment. Pure.
/// @throws IdentityError if they are contradictory or incomplete
inline NodeIdentity node_identity(const Environment& environment, const NodeFlags& flags = {}) {
  const Environment joined = with_flags(environment, flags);
  const Variables variables(joined);
  NodeIdentity node = detail::rank_and_count_of_node(joined, variables);
  if (node.node_rank >= node.node_count) {
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
