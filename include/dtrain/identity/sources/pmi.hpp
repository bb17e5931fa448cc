#pragma once
/// @file
/// Source [pmi]: a process that MPICH's, Intel MPI's or Cray PALS' mpiexec started.

#include "dtrain/identity/complete_identity.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/environment/slurm_step.hpp"
#include "dtrain/identity/master_address.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct PmiSource {
  static constexpr const char* name = "pmi";

  static bool present(const Variables& variables) { return variables.has("PMI_RANK") && variables.has("PMI_SIZE"); }

  /// Whether Slurm provides the PMI variables. Then source [slurm] is better: it also has local and node ranks.
  static bool yields_to_slurm(const Variables& variables) {
    const std::optional<RankAndSize> step = slurm_step_rank_and_size(variables);
    return step && step == stated_rank_and_size(variables, "PMI_RANK", "PMI_SIZE");
  }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity identity;
    identity.launcher = name;
    identity.rank = *variables.integer("PMI_RANK");
    identity.world_size = *variables.integer("PMI_SIZE");
    identity.local_rank = first_of(variables, "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID");
    identity.local_world_size = first_of(variables, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE");
    identity.node_rank = variables.integer("PALS_NODEID");
    const std::string stated =
        variables.stated({"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID",
                          "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "PALS_NODEID"});
    complete_identity(variables, {.slurm_allocation = true, .how = ": mpiexec -genv MASTER_ADDR HOST"}, stated,
                      identity);
    return identity;
  }

 private:
  static std::optional<int> first_of(const Variables& variables, const char* a, const char* b, const char* c) {
    return variables.has(a) ? variables.integer(a) : variables.has(b) ? variables.integer(b) : variables.integer(c);
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
