#pragma once
/// @file
/// Sources [tf_config], [vertex] and [sagemaker]: variables with the list of a cluster's processes, of which one entry
/// is this process.

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/formats/cluster_spec.hpp"
#include "dtrain/identity/formats/host_port.hpp"
#include "dtrain/identity/formats/json.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Adds MASTER_ADDR to `ignored` if it differs: the list of hosts determines the master.
inline void ignore_master_addr(const Variables& variables, ProcessIdentity& identity) {
  const std::optional<std::string_view> address = variables.text("MASTER_ADDR");
  if (address && address != identity.master_addr) {
    identity.ignored.push_back(quoted("MASTER_ADDR", *address));
  }
}

/// Hosts are taken for nodes, in the order of their first entries. One machine may have several names, so that nodes
/// are a guess.
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

struct SageMakerSource {
  static constexpr const char* name = "sagemaker";

  /// The rank is the position in the list, which is sorted as text: algo-10 comes before algo-2.
  static ProcessIdentity read(const Variables& variables, Arguments) {
    constexpr int sagemaker_port = 7777;
    const std::string_view list = *variables.text("SM_HOSTS");
    const std::string_view own = *variables.text("SM_CURRENT_HOST");
    const std::vector<std::string> hosts = parse_hosts(list);
    const auto found = std::find(hosts.begin(), hosts.end(), own);
    if (found == hosts.end()) {
      throw_identity_error(IdentityErrc::sm_host, "{} is not in {}; set SM_CURRENT_HOST to one of the list",
                           {quoted("SM_CURRENT_HOST", own), quoted("SM_HOSTS", list)});
    }
    ProcessIdentity identity;
    identity.launcher = name;
    identity.rank = static_cast<int>(found - hosts.begin());
    identity.world_size = static_cast<int>(hosts.size());
    identity.local_rank = 0;
    identity.local_world_size = 1;
    identity.node_rank = identity.rank;
    identity.node_count = identity.world_size;
    identity.master_addr = hosts.size() == 1 ? loopback_address : hosts.front();
    identity.master_port = variables.port("MASTER_PORT").value_or(sagemaker_port);
    ignore_master_addr(variables, identity);
    return identity;
  }

 private:
  /// @throws IdentityError (sm-host) for a text that is not a JSON list of different host names
  static std::vector<std::string> parse_hosts(std::string_view list) {
    const std::optional<Json> parsed = parse_json(list);
    const auto is_name = [](const Json& host) {
      return host.is(Json::Type::string) && !host.text.empty() &&
             std::all_of(host.text.begin(), host.text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
    };
    if (!parsed || !parsed->is(Json::Type::array) || parsed->items.empty() ||
        !std::all_of(parsed->items.begin(), parsed->items.end(), is_name)) {
      fail(list, "is not a JSON list of host names");
    }
    std::vector<std::string> hosts;
    for (const Json& host : parsed->items) {
      hosts.push_back(host.text);
    }
    if (std::set<std::string_view>(hosts.begin(), hosts.end()).size() != hosts.size()) {
      fail(list, "names a host twice");
    }
    return hosts;
  }

  [[noreturn]] static void fail(std::string_view list, const char* problem) {
    throw_identity_error(IdentityErrc::sm_host, "{} {}; set it to a list such as [\"algo-1\", \"algo-2\"], or unset it",
                         {quoted("SM_HOSTS", list), problem});
  }
};

/// TF_CONFIG, which TensorFlow's jobs, Kubeflow and Vertex AI set. Ranks are the chief (or master), then the workers.
/// Parameter servers and evaluators are no ranks.
struct TfConfigSource {
  static constexpr const char* name = "tf_config";
  static constexpr std::array<std::string_view, 3> ranked{"chief", "master", "worker"};
  static constexpr std::array<std::string_view, 2> unranked{"ps", "evaluator"};
  static constexpr std::array<std::string_view, 2> alone{"chief", "master"};
  static constexpr ClusterRoles roles{"TF_CONFIG", ranked, unranked, alone};
};

/// CLUSTER_SPEC, which Vertex AI sets for its custom jobs. Ranks are worker pool 0, then worker pool 1; pools 2 and 3
/// are for parameter servers and evaluators.
struct VertexSource {
  static constexpr const char* name = "vertex";
  static constexpr std::array<std::string_view, 2> ranked{"workerpool0", "workerpool1"};
  static constexpr std::array<std::string_view, 2> unranked{"workerpool2", "workerpool3"};
  static constexpr ClusterRoles roles{"CLUSTER_SPEC", ranked, unranked, {}};
};

template <class S>
bool cluster_is_present(const Variables& variables) {
  return has_cluster(S::roles, variables);
}

template <class S>
ProcessIdentity read_cluster_source(const Variables& variables, Arguments) {
  return identity_in_cluster(read_cluster(S::roles, variables), S::name, variables, S::roles.variable);
}

}  // namespace DTRAIN_NAMESPACE::identity
