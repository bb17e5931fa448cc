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
  ProcessIdentity identity;
  identity.launcher = launcher;
  identity.rank = static_cast<int>(task.rank);
  identity.world_size = static_cast<int>(task.entries.size());
  std::map<std::string, std::size_t> node_of_host;
  std::vector<int> entries;  // of each node
  for (std::size_t i = 0; i < task.entries.size(); ++i) {
    const HostPort entry = split_host_port(variable, task.entries[i], IdentityErrc::tf_malformed);
    const std::size_t node = node_of_host.emplace(entry.host, entries.size()).first->second;
    entries.resize(node_of_host.size());
    if (i == task.rank) {
      identity.local_rank = entries[node];
      identity.node_rank = static_cast<int>(node);
    }
    ++entries[node];
    if (i == 0) {
      identity.master_addr = entry.host;
      identity.master_port = entry.port;
    }
  }
  identity.local_world_size = entries[static_cast<std::size_t>(*identity.node_rank)];
  identity.node_count = static_cast<int>(entries.size());
  if (identity.world_size == 1) {
    identity.master_addr = loopback_address;
  } else {
    for (const char* const guess : {"local_rank", "local_world_size", "node_rank", "node_count"}) {
      identity.provisional.push_back(guess);
    }
  }
  const std::optional<int> port = variables.port("MASTER_PORT");
  identity.master_port = port ? port : identity.master_port.value_or(default_master_port);
  ignore_master_addr(variables, identity);
  return identity;
}

}  // namespace DTRAIN_NAMESPACE::identity
