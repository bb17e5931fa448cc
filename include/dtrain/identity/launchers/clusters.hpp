#pragma once
/// @file
/// Identity sources of launchers that list a cluster's processes: [tf_config], [vertex], [sagemaker], with a strict
/// reader of their JSON.

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/formats/addresses.hpp"
#include "dtrain/identity/formats/json.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Roles that the cluster of a variable may have.
struct ClusterRoles {
  const char* variable;
  std::span<const std::string_view> ranked;    ///< roles whose entries are the ranks, in this order
  std::span<const std::string_view> unranked;  ///< roles that do not train
  std::span<const std::string_view> alone;     ///< roles that together have at most one entry
};

/// The entries that are ranks, and this process's rank.
struct ClusterTask {
  std::vector<std::string> entries;
  std::size_t rank = 0;
};

namespace detail {

inline bool is_one_of(std::string_view name, std::span<const std::string_view> names) noexcept {
  return std::find(names.begin(), names.end(), name) != names.end();
}

inline bool is_missing(const Json* value) noexcept {
  return value == nullptr || value->is(Json::Type::null) ||
         ((value->is(Json::Type::object) || value->is(Json::Type::string)) && value->items.empty() &&
          value->text.empty());
}

/// Reads one variable's value. Every error names the variable and its value.
class ClusterReader {
 public:
  ClusterReader(const ClusterRoles& roles, std::string_view value) : roles_(roles), value_(value) {}

  ClusterTask read() const {
    const std::optional<Json> document = parse_json(value_);
    if (!document || !document->is(Json::Type::object)) {
      fail(IdentityErrc::tf_malformed, "is not a JSON object; correct it or unset it");
    }
    if (document->find("sparseCluster") != nullptr) {
      fail(IdentityErrc::tf_malformed, "has a sparseCluster, which does not list all workers; set the whole cluster");
    }
    const Json* const cluster = document->find("cluster");
    check_cluster(cluster);
    return find_task(*cluster, document->find("task"));
  }

 private:
  void check_cluster(const Json* cluster) const {
    if (cluster == nullptr || !cluster->is(Json::Type::object)) {
      fail(IdentityErrc::tf_malformed, "has no cluster of the form {ROLE: [HOST:PORT, ...]}; correct it or unset it");
    }
    std::size_t alone = 0;
    for (std::size_t i = 0; i < cluster->keys.size(); ++i) {
      const std::string& role = cluster->keys[i];
      const std::vector<Json>& entries = cluster->items[i].items;
      const bool strings =
          std::all_of(entries.begin(), entries.end(), [](const Json& e) { return e.is(Json::Type::string); });
      if (!is_one_of(role, roles_.ranked) && !is_one_of(role, roles_.unranked)) {
        fail(IdentityErrc::tf_malformed, format_text("has the unknown role {}; correct it", {quoted("cluster", role)}));
      }
      if (!cluster->items[i].is(Json::Type::array) || !strings) {
        fail(IdentityErrc::tf_malformed,
             format_text("has under {} what is not a list of HOST:PORT; correct it", {quoted("cluster", role)}));
      }
      alone += is_one_of(role, roles_.alone) ? entries.size() : 0;
    }
    if (alone > 1) {
      fail(IdentityErrc::tf_malformed, format_text("has {} chiefs; leave one, as chief or as master", {alone}));
    }
  }

  ClusterTask find_task(const Json& cluster, const Json* task) const {
    if (is_missing(task)) {
      fail(IdentityErrc::tf_no_task, "has a cluster but no task; set task to {\"type\": ROLE, \"index\": N}");
    }
    const Json* const type = task->find("type");
    const Json* const index = task->find("index");
    if (!task->is(Json::Type::object) || (!is_missing(type) && !type->is(Json::Type::string))) {
      fail(IdentityErrc::tf_malformed, "has a task that is not {\"type\": ROLE, \"index\": N}; correct it");
    }
    if (is_missing(type) || is_missing(index)) {
      fail(IdentityErrc::tf_no_task, "has a task without type or index; set task to {\"type\": ROLE, \"index\": N}");
    }
    if (is_one_of(type->text, roles_.unranked)) {
      fail(IdentityErrc::tf_not_trainer,
           format_text("says this is task '{}'; only {} take part in training: start another program for it",
                       {type->text, joined(roles_.ranked, "/")}));
    }
    if (!is_one_of(type->text, roles_.ranked)) {
      fail(IdentityErrc::tf_malformed, format_text("has a task of the unknown {}; set one of {}",
                                                   {quoted("type", type->text), joined(roles_.ranked, "/")}));
    }
    return task_of_rank(cluster, *type, *index);
  }

  ClusterTask task_of_rank(const Json& cluster, const Json& type, const Json& index) const {
    ClusterTask task;
    for (const std::string_view role : roles_.ranked) {
      const Json* const entries = cluster.find(role);
      const std::size_t count = entries == nullptr ? 0 : entries->items.size();
      if (role == type.text) {
        const bool is_number = index.is(Json::Type::number) || index.is(Json::Type::string);
        const std::optional<int> number = is_number ? parse_integer(index.text) : std::nullopt;
        if (!number || static_cast<std::size_t>(*number) >= count) {
          fail(IdentityErrc::tf_bad_index,
               format_text("has a task of {} and {}, but the cluster lists {} of them; set an index below that",
                           {quoted("type", type.text), quoted("index", index.text), count}));
        }
        task.rank = task.entries.size() + static_cast<std::size_t>(*number);
      }
      for (std::size_t i = 0; i < count; ++i) {
        task.entries.push_back(entries->items[i].text);
      }
    }
    return task;
  }

  [[noreturn]] void fail(IdentityErrc code, std::string_view problem) const {
    throw_identity_error(code, "{} {}", {quoted(roles_.variable, value_), problem});
  }

  const ClusterRoles& roles_;
  std::string_view value_;
};

}  // namespace detail

/// Whether the variable has a cluster. False for a document without a cluster, or with an empty one. True for a value
/// that cannot be parsed, which read_cluster() then rejects.
inline bool has_cluster(const ClusterRoles& roles, const Variables& variables) {
  const std::optional<std::string_view> value = variables.text(roles.variable);
  const std::optional<Json> document = value ? parse_json(*value) : std::nullopt;
  if (!document || !document->is(Json::Type::object) || document->find("sparseCluster") != nullptr) {
    return value.has_value();
  }
  return !detail::is_missing(document->find("cluster"));
}

/// @throws IdentityError: tf-malformed, tf-no-task, tf-not-trainer, tf-bad-index
inline ClusterTask read_cluster(const ClusterRoles& roles, const Variables& variables) {
  return detail::ClusterReader(roles, *variables.text(roles.variable)).read();
}

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
  std::vector<int> entries;  // number of entries of each node
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

}  // namespace DTRAIN_NAMESPACE::identity
