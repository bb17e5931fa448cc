#pragma once
/// @file
/// Cluster specification: strict reader of TensorFlow's JSON, {"cluster": {ROLE: [ENTRY...]}, "task": {"type": ROLE,
/// "index": N}}.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/formats/json.hpp"
#include "dtrain/identity/variables.hpp"

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
                       {type->text, trainers()}));
    }
    if (!is_one_of(type->text, roles_.ranked)) {
      fail(IdentityErrc::tf_malformed,
           format_text("has a task of the unknown {}; set one of {}", {quoted("type", type->text), trainers()}));
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

  std::string trainers() const {
    std::string list;
    for (const std::string_view role : roles_.ranked) {
      append_text(list, "{}{}", {list.empty() ? "" : "/", role});
    }
    return list;
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

}  // namespace DTRAIN_NAMESPACE::identity
