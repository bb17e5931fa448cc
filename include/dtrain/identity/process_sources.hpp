#pragma once
/// @file
/// Process-identity sources in order of precedence; completeness check: an error with remedy if variables show a job
/// and no source is complete.

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/slurm_step.hpp"
#include "dtrain/identity/formats/json.hpp"
#include "dtrain/identity/launchers/clusters.hpp"
#include "dtrain/identity/launchers/torch.hpp"
#include "dtrain/identity/launchers/variable_tables.hpp"
#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

/// Launchers of whose two variables, rank and world size, either one shows that the job has other processes, except a
/// size of 1.
inline constexpr std::array<const LauncherVariables*, 7> launcher_pairs{
    &dtrain_names, &horovod_names, &OpenMpiSource::names, &jsrun_names, &mvapich_names, &flux_names, &PmiSource::names};

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
  for (const LauncherVariables* const names : launcher_pairs) {
    const bool has_rank = variables.integer(names->rank).has_value();
    const std::optional<int> count = variables.integer(names->world_size);
    if (has_rank != count.has_value() && count != 1) {
      const char* const missing = has_rank ? names->world_size : names->rank;
      refuse_half(variables.stated({names->rank, names->world_size}), format_text("{} is", {missing}),
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

/// A scheduler that starts a process on each of several nodes, and the names of its variables that describe the nodes.
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

/// These systems also set their variables for jobs of one node. LeaderWorkerSet has LWS_WORKER_INDEX since version 0.6.
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
      append_entry(stated, ", ", variables.stated({name}));
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

/// The error's sentence names the variable, the missing variables, and, for half an identity, DTRAIN_LAUNCHER=none.
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
  const bool has_a_size = variables.has("WORLD_SIZE") ||
                          std::any_of(detail::launcher_pairs.begin(), detail::launcher_pairs.end(),
                                      [&](const LauncherVariables* names) { return variables.has(names->world_size); });
  if (pmix_rank && !has_a_size) {
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
  detail::check_pairs(variables);
  detail::check_slurm_half(variables);
  detail::check_sagemaker_half(variables);
  detail::check_node_half(variables);
  detail::check_local_half(variables);
  detail::check_scheduler_half(variables);
  detail::check_volcano_half(variables);
}

/// The variables that a source needs, first one that differs between ranks; an empty name is none.
using Needs = std::array<std::string_view, 3>;

/// A source: the launcher's name (a value of DTRAIN_LAUNCHER), whether its variables give both rank and world size, and
/// the identity that they give.
struct IdentitySource {
  std::string_view name;
  Needs needs;
  ProcessIdentity (*read)(const Variables&, Arguments);
  bool one_starter = false;                        ///< one process on each node starts all ranks of that node
  bool (*present_if)(const Variables&) = nullptr;  ///< null: if all that it needs is set

  bool present(const Variables& variables) const {
    return present_if != nullptr ? present_if(variables)
                                 : std::all_of(needs.begin(), needs.end(), [&](std::string_view variable) {
                                     return variable.empty() || variables.has(variable);
                                   });
  }
};

template <const LauncherVariables& names>
constexpr IdentitySource source_of(bool one_starter,
                                   ProcessIdentity (*read)(const Variables&, Arguments) = read_launcher<names>) {
  return {names.launcher, {names.rank, names.world_size}, read, one_starter};
}

template <class S>
constexpr IdentitySource cluster_source() {
  const auto read = [](const Variables& variables, Arguments) {
    return identity_in_cluster(read_cluster(S::roles, variables), S::name, variables, S::roles.variable);
  };
  const auto is_present = [](const Variables& variables) { return has_cluster(S::roles, variables); };
  return {S::name, {S::roles.variable}, read, false, is_present};
}

/// The first source that is present counts. Sources of launchers come before sources that only describe a cluster,
/// because mpirun may run inside a cluster. The last source is always present.
inline constexpr std::array<IdentitySource, 14> sources{{
    source_of<dtrain_names>(false, read_dtrain),
    {TorchSource::name, {"RANK", "WORLD_SIZE"}, TorchSource::read},
    source_of<horovod_names>(false),
    source_of<OpenMpiSource::names>(true, OpenMpiSource::read),
    source_of<jsrun_names>(false),
    source_of<mvapich_names>(true),
    source_of<flux_names>(true),
    source_of<PmiSource::names>(true, PmiSource::read),
    {SlurmSource::name,
     {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"},
     SlurmSource::read,
     true,
     in_slurm_step},
    cluster_source<TfConfigSource>(),
    cluster_source<VertexSource>(),
    {SageMakerSource::name, {"SM_CURRENT_HOST", "SM_HOSTS"}, SageMakerSource::read},
    {kubernetes_names.launcher,
     {kubernetes_names.rank, kubernetes_names.world_size},
     read_kubernetes,
     false,
     kubernetes_is_present},
    {SingleSource::name, {}, SingleSource::read},
}};

namespace detail {

/// All sources but [single].
inline constexpr std::span<const IdentitySource> launchers(sources.data(), sources.size() - 1);

/// Names what a known launcher lacks, or all known launchers.
/// @param there the names of launchers that are present, without [single], each followed by ", "
[[noreturn]] inline void refuse_launcher(const Variables& variables, std::string_view wanted,
                                         const std::string& there) {
  std::string missing;
  std::string known;
  bool is_known = false;
  const auto add = [&](std::string_view launcher, const Needs& needs) {
    append_text(known, "{}, ", {launcher});
    is_known = is_known || launcher == wanted;
    for (const std::string_view variable : needs) {
      if (launcher == wanted && !variable.empty() && !variables.has(variable)) {
        append_entry(missing, ", ", variable);
      }
    }
  };
  for (const IdentitySource& source : launchers) {
    add(source.name, source.needs);
  }
  add("node", {"NODE_RANK", "NNODES"});  // the pairs of node_identity.hpp
  add("pet", {"PET_NODE_RANK", "PET_NNODES"});
  const std::string own = quoted("DTRAIN_LAUNCHER", wanted);
  if (is_known && there.empty()) {
    throw_identity_error(
        IdentityErrc::unknown_launcher,
        "{} names a launcher, but its variables are not set, and no other launcher's are; set {}, or unset "
        "DTRAIN_LAUNCHER",
        {own, missing.empty() ? "them for every process" : missing});
  }
  if (there.empty()) {
    throw_identity_error(
        IdentityErrc::unknown_launcher,
        "{} names no launcher that dtrain knows ({}single, none), and no launcher's variables are set; "
        "unset DTRAIN_LAUNCHER",
        {own, known});
  }
  const std::string why = is_known ? "" : format_text(", nor one that dtrain knows ({}single, none)", {known});
  throw_identity_error(
      IdentityErrc::unknown_launcher,
      "{} names no launcher whose variables are set{}{}{}; there are: {}single, none; set one of them, or unset it",
      {own, why, missing.empty() ? "" : ": not set for it: ", missing, there});
}

inline std::string names_of_present(const Variables& variables) {
  std::string names;
  for (const IdentitySource& source : launchers) {
    if (source.present(variables)) {
      append_text(names, "{}, ", {source.name});
    }
  }
  return names;
}

/// The source that DTRAIN_LAUNCHER names. @throws IdentityError (unknown-launcher), which lists the present sources
inline const IdentitySource& forced_source(const Variables& variables, std::string_view wanted) {
  if (wanted == "none") {
    return sources.back();
  }
  for (const IdentitySource& source : sources) {
    if (source.name == wanted && source.present(variables)) {
      return source;
    }
  }
  refuse_launcher(variables, wanted, names_of_present(variables));
}

inline const IdentitySource& first_source(const Variables& variables) {
  for (const IdentitySource& source : launchers) {
    const bool yields = source.name == PmiSource::name && PmiSource::yields_to_slurm(variables);
    if (!yields && source.present(variables)) {
      return source;
    }
  }
  check_complete(variables);
  return sources.back();
}

/// Whether a source gives the same rank and world size as `identity`; false if the source throws.
inline bool agrees(const IdentitySource& source, const Variables& variables, Arguments arguments,
                   const ProcessIdentity& identity) {
  try {
    const ProcessIdentity other = source.read(variables, arguments);
    return other.rank == identity.rank && other.world_size == identity.world_size;
  } catch (const IdentityError&) {
    return false;
  }
}

/// Adds present sources that disagree with the chosen one to `ignored`, for the printed line. If [dtrain] was chosen,
/// other sources are not compared.
inline void note_ignored(const IdentitySource& chosen, const Variables& variables, Arguments arguments,
                         ProcessIdentity& identity) {
  for (const IdentitySource& source : launchers) {
    if (chosen.name != dtrain_names.launcher && source.name != chosen.name && source.present(variables) &&
        !agrees(source, variables, arguments, identity)) {
      const bool by_hand = source.name == TorchSource::name && !variables.has("TORCHELASTIC_RUN_ID");
      identity.ignored.push_back(std::string(by_hand ? "RANK and WORLD_SIZE" : source.name));
    }
  }
  const bool half = variables.has("DTRAIN_RANK") != variables.has("DTRAIN_WORLD_SIZE");
  if (half) {
    identity.warnings.push_back("only one of DTRAIN_RANK and DTRAIN_WORLD_SIZE is set: ignored");
  }
}

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE::identity
