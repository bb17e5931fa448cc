#pragma once
/// @file
/// Cluster identity: identity of one entry in a list of a cluster's processes.

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "dtrain/identity/complete_identity.hpp"
#include "dtrain/identity/formats/cluster_spec.hpp"
#include "dtrain/identity/formats/host_port.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Adds MASTER_ADDR to `ignored` if it differs: the list of hosts determines the master.
inline void ignore_master_addr(const Variables& variables, ProcessIdentity& identity) {
  const std::optional<std::string_view> address = variables.text("MASTER_ADDR");
  if (address && address != identity.master_addr) {
    identity.ignored.push_back(quoted("MASTER_ADDR", *address));
  }
}

/// Hosts are nodes, in the order of their first entries. That is a guess: one machine may have several names.
/// @throws IdentityError: ambiguous-address, bad-port, tf-malformed
inline ProcessIdentity identity_in_cluster(const ClusterTask& task, const char* launcher, const Variables& variables,
                                           const char* variable) {
  struct Node {
    int rank = 0;
    int entries = 0;
  };
  ProcessIdentity identity;
  identity.launcher = launcher;
  identity.rank = static_cast<int>(task.rank);
  identity.world_size = static_cast<int>(task.entries.size());
  std::map<std::string, Node, std::less<>> nodes;
  std::string own_host;
  for (std::size_t i = 0; i < task.entries.size(); ++i) {
    const HostPort entry = split_host_port(variable, task.entries[i], IdentityErrc::tf_malformed);
    Node& node = nodes.try_emplace(entry.host, Node{static_cast<int>(nodes.size()), 0}).first->second;
    if (i == task.rank) {
      own_host = entry.host;
      identity.local_rank = node.entries;
      identity.node_rank = node.rank;
    }
    ++node.entries;
    if (i == 0) {
      identity.master_addr = entry.host;
      identity.master_port = entry.port;
    }
  }
  identity.local_world_size = nodes[own_host].entries;
  identity.node_count = static_cast<int>(nodes.size());
  if (identity.world_size == 1) {
    identity.master_addr = loopback_address;
  } else {
    identity.provisional = {"local_rank", "local_world_size", "node_rank", "node_count"};
  }
  const std::optional<int> port = variables.port("MASTER_PORT");
  identity.master_port = port ? port : identity.master_port.value_or(default_master_port);
  ignore_master_addr(variables, identity);
  return identity;
}

}  // namespace DTRAIN_NAMESPACE::identity
