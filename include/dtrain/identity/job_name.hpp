#pragma once
/// @file
/// Job name of a ProcessIdentity: DTRAIN_JOB_ID, else the launcher's id; ranks with different names do not join each
/// other.

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/slurm_step.hpp"
#include "dtrain/identity/formats/addresses.hpp"
#include "dtrain/identity/launchers/variable_tables.hpp"
#include "dtrain/identity/process_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// The launcher that started the ranks. If RANK and WORLD_SIZE only repeat the values of a Slurm step, Open MPI or PMI,
/// the result is that launcher.
inline std::string_view starting_launcher(const Variables& variables, const ProcessIdentity& identity) {
  if (identity.launcher != "torch" || identity.elastic) {
    return identity.launcher;
  }
  const RankAndSize own{identity.rank, identity.world_size};
  return slurm_step_rank_and_size(variables) == own             ? "slurm"
         : OpenMpiSource::names.rank_and_size(variables) == own ? OpenMpiSource::name
         : PmiSource::names.rank_and_size(variables) == own     ? PmiSource::name
                                                                : std::string_view(identity.launcher);
}

namespace detail {

/// Names and values of the variables as "A.B=1.2"; nullopt unless all are set.
inline std::optional<std::string> named_by(const Variables& variables, std::initializer_list<const char*> names) {
  std::string left;
  std::string right;
  for (const char* name : names) {
    const std::optional<std::string_view> value = variables.text(name);
    if (!value) {
      return std::nullopt;
    }
    append_entry(left, ".", name);
    append_entry(right, ".", *value);
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

}  // namespace DTRAIN_NAMESPACE::identity
