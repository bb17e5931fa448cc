#pragma once
/// @file
/// Source [pmi]: a process that MPICH's, Intel MPI's or Cray PALS' mpiexec started.

#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/environment/slurm_step.hpp"
#include "dtrain/identity/master_address.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct PmiSource {
  static constexpr const char* name = "pmi";

  /// Whether Slurm provides the PMI variables. Then source [slurm] is better: it also has local and node ranks.
  static bool yields_to_slurm(const Variables& variables) {
    const std::optional<RankAndSize> step = slurm_step_rank_and_size(variables);
    return step && step == stated_rank_and_size(variables, "PMI_RANK", "PMI_SIZE");
  }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    const LauncherVariables names{
        name,
        "PMI_RANK",
        "PMI_SIZE",
        first_set(variables, "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
        first_set(variables, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
        "PALS_NODEID",
    };
    ProcessIdentity identity = names.read(variables);
    const std::string stated =
        variables.stated({"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID",
                          "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "PALS_NODEID"});
    complete_identity(variables, {.slurm_allocation = true, .how = ": mpiexec -genv MASTER_ADDR HOST"}, stated,
                      identity);
    return identity;
  }

 private:
  static const char* first_set(const Variables& variables, const char* a, const char* b, const char* c) {
    return variables.has(a) ? a : variables.has(b) ? b : c;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
