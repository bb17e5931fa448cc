#pragma once
/// @file
/// Job name: DTRAIN_JOB_ID, else the launcher's id of the job; ranks with different job names do not join each
/// other. Job namings also say how a rank recognises the process that started all ranks.

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/slurm_step.hpp"
#include "dtrain/identity/formats/orte_uri.hpp"
#include "dtrain/identity/launchers/openmpi.hpp"
#include "dtrain/identity/process_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

/// Properties of a source for naming jobs.
struct JobNaming {
  std::string_view launcher;
  const char* rank_variable;  ///< differs between ranks; an ancestor without it started the ranks
  bool one_starter;           ///< one process on each node starts all ranks of that node
};

inline constexpr std::array<JobNaming, 13> job_namings{{
    {"dtrain", "DTRAIN_RANK", false},
    {"torch", "RANK", false},
    {"horovod", "HOROVOD_RANK", false},
    {"openmpi", "OMPI_COMM_WORLD_RANK", true},
    {"jsrun", "JSM_NAMESPACE_RANK", false},
    {"mvapich", "MV2_COMM_WORLD_RANK", true},
    {"flux", "FLUX_TASK_RANK", true},
    {"pmi", "PMI_RANK", true},
    {"slurm", "SLURM_PROCID", true},
    {"tf_config", "TF_CONFIG", false},
    {"vertex", "CLUSTER_SPEC", false},
    {"sagemaker", "SM_CURRENT_HOST", false},
    {"k8s", "JOB_COMPLETION_INDEX", false},
}};

/// The launcher that started the ranks. If RANK and WORLD_SIZE only repeat the values of a Slurm step, Open MPI or PMI,
/// it is that launcher.
inline std::string_view starting_launcher(const Variables& variables, const ProcessIdentity& identity) {
  if (identity.launcher != "torch" || identity.elastic) {
    return identity.launcher;
  }
  const RankAndSize own{identity.rank, identity.world_size};
  const LauncherVariables& mpi = OpenMpiSource::names;
  return slurm_step_rank_and_size(variables) == own                         ? "slurm"
         : stated_rank_and_size(variables, mpi.rank, mpi.world_size) == own ? "openmpi"
         : stated_rank_and_size(variables, "PMI_RANK", "PMI_SIZE") == own   ? "pmi"
                                                                            : std::string_view(identity.launcher);
}

/// Names and values of the variables as "A.B=1.2"; nullopt unless all are set.
inline std::optional<std::string> named_by(const Variables& variables, std::initializer_list<const char*> names) {
  std::string left;
  std::string right;
  for (const char* name : names) {
    const std::optional<std::string_view> value = variables.text(name);
    if (!value) {
      return std::nullopt;
    }
    append_text(left, "{}{}", {left.empty() ? "" : ".", name});
    append_text(right, "{}{}", {right.empty() ? "" : ".", *value});
  }
  return format_text("{}={}", {left, right});
}

inline std::optional<std::string> openmpi_job_name(const Variables& variables) {
  const auto hnp = parse_orte_uri(variables.text("OMPI_MCA_orte_hnp_uri").value_or(""));
  const std::optional<std::string> space = named_by(variables, {"PMIX_NAMESPACE"});
  return space ? space : hnp ? std::optional(format_text("mpirun={}", {hnp->job})) : std::nullopt;
}

/// The launcher's name of this start of the program; another start has another name.
inline std::optional<std::string> launch_name(const Variables& variables, std::string_view launcher) {
  return launcher == "slurm"     ? named_by(variables, {slurm_job_id_variable(variables).c_str(), "SLURM_STEP_ID"})
         : launcher == "openmpi" ? openmpi_job_name(variables)
         : launcher == "jsrun"   ? named_by(variables, {"PMIX_NAMESPACE"})
         : launcher == "flux"    ? named_by(variables, {"FLUX_JOB_ID"})
         : launcher == "pmi"     ? named_by(variables, {"PALS_APID"})
         : launcher == "horovod" ? named_by(variables, {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"})
                                 : std::nullopt;
}

/// The batch system's name of the allocation in which the job runs. Other jobs may run in the same allocation.
inline std::optional<std::string> allocation_name(const Variables& variables, std::string_view launcher) {
  const bool starts_all = launcher == "jsrun" || launcher == "mvapich" || launcher == "pmi" || launcher == "openmpi";
  const std::optional<std::string> lsf = starts_all ? named_by(variables, {"LSB_JOBID"}) : std::nullopt;
  return lsf || !starts_all ? lsf : named_by(variables, {"SLURM_JOB_ID"});
}

}  // namespace detail

/// "DTRAIN_JOB_ID=monday" if the user set the name; else nullopt.
inline std::optional<std::string> given_job_name(const Variables& variables) {
  return detail::named_by(variables, {"DTRAIN_JOB_ID"});
}

/// Fills in job, is_exact_job, one_starter and rank_variable. Pure.
inline void name_job(const Variables& variables, ProcessIdentity& identity) {
  const std::string_view launcher = detail::starting_launcher(variables, identity);
  const auto* const naming = std::find_if(detail::job_namings.begin(), detail::job_namings.end(),
                                          [&](const detail::JobNaming& each) { return each.launcher == launcher; });
  if (naming != detail::job_namings.end()) {
    identity.rank_variable = naming->rank_variable;
    identity.one_starter = naming->one_starter || identity.elastic;
  }
  const std::optional<std::string> given = given_job_name(variables);
  const std::optional<std::string> launch = given ? given : detail::launch_name(variables, launcher);
  if (given || !identity.elastic) {
    identity.job = launch ? launch : detail::allocation_name(variables, launcher);
  }
  identity.is_exact_job =
      launch || (identity.elastic && identity.job != "none");  // torchrun's run id of a job without a name
}

}  // namespace DTRAIN_NAMESPACE::identity
