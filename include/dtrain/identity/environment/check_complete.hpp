#pragma once
/// @file
/// Completeness check: errors, with remedies, if variables show a job of several processes but are no complete source.

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/slurm_step.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/identity/formats/json.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

/// Variables of a launcher. Either of them alone shows that the job has other processes, except a size of 1.
struct RankAndSizeNames {
  const char* rank;
  const char* size;
};

inline constexpr std::array<RankAndSizeNames, 7> launcher_pairs{{
    {"DTRAIN_RANK", "DTRAIN_WORLD_SIZE"},
    {"HOROVOD_RANK", "HOROVOD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
    {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
}};

/// @param stated "PMI_RANK='3'"
/// @param missing "PMI_SIZE is", or "RANK and WORLD_SIZE are"
[[noreturn]] inline void refuse_half(std::string_view stated, std::string_view missing, std::string_view remedy) {
  throw_identity_error(
      IdentityErrc::half_identity,
      "{} says that this process is one of several, but {} not set; {}, or set DTRAIN_LAUNCHER=none for a process that "
      "is meant to be alone",
      {stated, missing, remedy});
}

inline void check_pairs(const Variables& variables) {
  for (const auto& [rank, size] : launcher_pairs) {
    const bool has_rank = variables.integer(rank).has_value();
    const std::optional<int> count = variables.integer(size);
    if (has_rank != count.has_value() && count != 1) {
      const char* const missing = has_rank ? size : rank;
      refuse_half(variables.stated({rank, size}), format_text("{} is", {missing}),
                  format_text("set {} for every process", {missing}));
    }
  }
}

/// A batch script, which is no step, has SLURM_PROCID=0.
inline void check_slurm_half(const Variables& variables) {
  if (!variables.has("SLURM_STEP_ID") && variables.integer("SLURM_PROCID").value_or(0) > 0) {
    refuse_half(variables.stated({"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}), "SLURM_STEP_ID is",
                "pass the step's whole environment on (srun --export=ALL)");
  }
  if (variables.has("SLURM_PROCID") && variables.wide_integer("SLURM_STEP_ID") && is_real_slurm_step(variables) &&
      !variables.has(slurm_size_variable(variables))) {
    variables.integer("SLURM_PROCID");
    refuse_half(variables.stated({"SLURM_PROCID", "SLURM_STEP_ID"}), "SLURM_STEP_NUM_TASKS is",
                "pass the step's whole environment on (srun --export=ALL)");
  }
}

/// One host in SM_HOSTS is a job of one process.
inline void check_sagemaker_half(const Variables& variables) {
  const std::optional<Json> hosts = parse_json(variables.text("SM_HOSTS").value_or(""));
  const bool alone = hosts && hosts->is(Json::Type::array) && hosts->items.size() == 1;
  if (variables.has("SM_HOSTS") != variables.has("SM_CURRENT_HOST") && !alone) {
    const char* const missing = variables.has("SM_HOSTS") ? "SM_CURRENT_HOST" : "SM_HOSTS";
    refuse_half(variables.stated({"SM_HOSTS", "SM_CURRENT_HOST"}), format_text("{} is", {missing}),
                format_text("set {} for every process", {missing}));
  }
}

/// NODE_RANK with the number of nodes is an error for a process. A per-node launcher has read them before.
inline void check_node_half(const Variables& variables) {
  const char* const start = "start a program with launch::PerNode, or set RANK and WORLD_SIZE for every process";
  for (const char* count : {"NNODES", "AZUREML_NODE_COUNT"}) {
    if (variables.has("NODE_RANK") && variables.has(count) && variables.text(count) != "1") {
      refuse_half(variables.stated({"NODE_RANK", count}), "RANK and WORLD_SIZE are", start);
    }
  }
  const bool has_count = variables.has("NNODES") || variables.has("AZUREML_NODE_COUNT");
  const char* const both =
      "set NODE_RANK and NNODES for every node's launch::PerNode program, or RANK and WORLD_SIZE for every process of "
      "another";
  if (!has_count && variables.integer("NODE_RANK").value_or(0) > 0) {
    refuse_half(variables.stated({"NODE_RANK"}), "NNODES is", both);
  }
  if (!variables.has("NODE_RANK") && parse_integer(variables.text("NNODES").value_or("1")).value_or(2) > 1) {
    refuse_half(variables.stated({"NNODES"}), "NODE_RANK is", both);
  }
  if (variables.integer("PET_NODE_RANK") && !variables.has("PET_NNODES")) {
    refuse_half(variables.stated({"PET_NODE_RANK"}), "PET_NNODES is", start);
  }
}

inline void check_local_half(const Variables& variables) {
  const bool ranked = variables.integer("LOCAL_RANK").value_or(0) != 0;
  if (ranked || variables.integer("LOCAL_WORLD_SIZE").value_or(1) != 1) {
    refuse_half(variables.stated({ranked ? "LOCAL_RANK" : "LOCAL_WORLD_SIZE"}), "RANK and WORLD_SIZE are",
                "set both for every process");
  }
  if (variables.integer("OMPI_COMM_WORLD_LOCAL_RANK").value_or(0) != 0) {
    refuse_half(variables.stated({"OMPI_COMM_WORLD_LOCAL_RANK"}), "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE are",
                "set both for every process");
  }
  if (variables.integer("PALS_RANKID")) {
    refuse_half(variables.stated({"PALS_RANKID"}), "PMI_RANK and PMI_SIZE are", "set both for every process");
  }
}

/// A system that starts a process on each of several nodes, and states the nodes in variables with names of its own.
struct NodeScheduler {
  const char* rank;
  const char* count;
  const char* master;  ///< the address of node 0, in shell
};

inline constexpr std::array<NodeScheduler, 4> node_schedulers{{
    {"SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "$(echo \"$SKYPILOT_NODE_IPS\" | head -n1)"},
    {"LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "$LWS_LEADER_ADDRESS"},  // Kubernetes' LeaderWorkerSet
    {"DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "$DSTACK_MASTER_NODE_IP"},
    {"AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES", "the address of the main node"},
}};

/// @param node_rank, node_count, master_addr in shell
[[noreturn]] inline void refuse_scheduled(const std::string& stated, const std::string& node_rank,
                                          const std::string& node_count, const std::string& master_addr) {
  refuse_half(stated, "NODE_RANK and NNODES are",
              format_text("set NODE_RANK={}, NNODES={} and MASTER_ADDR={} for a launch::PerNode program, or RANK, "
                          "WORLD_SIZE and MASTER_ADDR for every process of another",
                          {node_rank, node_count, master_addr}));
}

/// These systems set their variables for jobs of one node, too. LeaderWorkerSet has LWS_WORKER_INDEX since version 0.6.
inline void check_scheduler_half(const Variables& variables) {
  for (const auto& [rank, count, master] : node_schedulers) {
    const std::optional<int> nodes = variables.integer(count);
    if (nodes ? *nodes > 1 : variables.integer(rank).value_or(0) > 0) {
      refuse_scheduled(variables.stated({rank, count}), format_text("${}", {rank}), format_text("${}", {count}),
                       master);
    }
  }
}

/// Volcano's plugin svc, for pods that talk to each other, sets VC_TASK_NUM and VC_TASK_HOSTS for each task, whose name
/// the user chooses: often "worker" alone, or "master" and "worker". Plugin env sets a pod's index in its task, which
/// alone says nothing: the pods of a sweep are independent.
inline void check_volcano_half(const Variables& variables) {
  constexpr std::string_view suffix = "_NUM";
  std::string stated = variables.stated({"VC_TASK_INDEX"});
  std::string task;
  int tasks = 0;
  long long pods = 0;
  for (const std::string_view name : variables.names_with_prefix("VC_")) {
    if (name.ends_with(suffix)) {
      task = name.substr(0, name.size() - suffix.size());
      tasks += 1;
      pods += parse_integer(*variables.text(name)).value_or(0);
      append_text(stated, "{}{}", {stated.empty() ? "" : ", ", variables.stated({name})});
    }
  }
  if (pods < 2 || (!variables.has("VC_TASK_INDEX") && !variables.has(task + "_HOSTS"))) {
    return;
  }
  if (tasks == 1) {
    refuse_scheduled(stated, "$VC_TASK_INDEX", format_text("${}_NUM", {task}), format_text("${{}_HOSTS%%,*}", {task}));
  }
  refuse_scheduled(stated, format_text("0..{} (another in each pod)", {pods - 1}), std::to_string(pods),
                   "the host of node 0");
}

}  // namespace detail

/// The error's sentence names the variable, the missing variables, and DTRAIN_LAUNCHER=none. @pre no source is
/// complete.
/// @throws IdentityError: half-identity, bad-integer
inline void check_half_identity(const Variables& variables) {
  detail::check_pairs(variables);
  detail::check_slurm_half(variables);
  detail::check_sagemaker_half(variables);
  detail::check_node_half(variables);
  detail::check_local_half(variables);
  detail::check_scheduler_half(variables);
  detail::check_volcano_half(variables);
}

namespace detail {

/// Whether any launcher's world size is set.
inline bool has_a_size(const Variables& variables) {
  return variables.has("WORLD_SIZE") ||
         std::any_of(launcher_pairs.begin(), launcher_pairs.end(),
                     [&](const RankAndSizeNames& pair) { return variables.has(pair.size); });
}

}  // namespace detail

/// @pre no source is present.
/// @throws IdentityError: node-level-env, pmix-only, no-rank, no-world-size, half-identity, bad-integer
inline void check_complete(const Variables& variables) {
  const std::optional<std::string_view> nodes = variables.text("PET_NNODES");
  const std::string_view per_node = variables.text("PET_NPROC_PER_NODE").value_or("1");
  if (nodes && !variables.has("RANK") && (*nodes != "1" || per_node != "1")) {
    throw_identity_error(IdentityErrc::node_level_env,
                         "{} with {} describes a node, not a process; start the program through the per-node launcher "
                         "(dtrain::launch::PerNode), or set RANK and WORLD_SIZE for every process",
                         {quoted("PET_NNODES", *nodes), quoted("PET_NPROC_PER_NODE", per_node)});
  }
  const std::optional<std::string_view> pmix_rank = variables.text("PMIX_RANK");
  if (pmix_rank && !detail::has_a_size(variables)) {
    throw_identity_error(IdentityErrc::pmix_only,
                         "{} is set but no variable gives the number of processes; set DTRAIN_RANK and "
                         "DTRAIN_WORLD_SIZE on every process",
                         {quoted("PMIX_RANK", *pmix_rank)});
  }
  const std::optional<int> size = variables.integer("WORLD_SIZE");
  const std::optional<std::string_view> rank = variables.text("RANK");
  if (size && *size > 1 && !rank) {
    throw_identity_error(IdentityErrc::no_rank,
                         "WORLD_SIZE={} is set but RANK is not; set RANK to 0..{}, another on each process",
                         {*size, *size - 1});
  }
  if (rank && !size) {
    throw_identity_error(IdentityErrc::no_world_size,
                         "{} is set but WORLD_SIZE is not; set WORLD_SIZE to the number of processes",
                         {quoted("RANK", *rank)});
  }
  check_half_identity(variables);
}

}  // namespace DTRAIN_NAMESPACE::identity
