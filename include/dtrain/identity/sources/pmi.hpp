#pragma once
/// @file
/// Source [pmi]: a process that MPICH's, Intel MPI's or Cray PALS' mpiexec started.

#include "dtrain/identity/completion.hpp"
#include "dtrain/identity/local_rank_argument.hpp"
#include "dtrain/identity/master.hpp"
#include "dtrain/identity/slurm_step.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct PmiSource {
  static constexpr const char* name = "pmi";

  static bool present(const Variables& variables) { return variables.has("PMI_RANK") && variables.has("PMI_SIZE"); }

  /// Slurm serves PMI itself, and then has the local facts too.
  static bool yields_to_slurm(const Variables& variables) {
    const std::optional<Place> step = slurm_step_place(variables);
    return step && step == stated_place(variables, "PMI_RANK", "PMI_SIZE");
  }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who;
    who.launcher = name;
    who.rank = *variables.integer("PMI_RANK");
    who.world_size = *variables.integer("PMI_SIZE");
    who.local_rank = first_of(variables, "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID");
    who.local_world_size = first_of(variables, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE");
    who.node_rank = variables.integer("PALS_NODEID");
    const std::string stated =
        variables.stated({"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID",
                          "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "PALS_NODEID"});
    complete_one_node(who);
    check_ranges(who, stated);
    find_master(variables, {.slurm_allocation = true, .how = ": mpiexec -genv MASTER_ADDR HOST"}, stated, who);
    return who;
  }

 private:
  static std::optional<int> first_of(const Variables& variables, const char* a, const char* b, const char* c) {
    return variables.has(a) ? variables.integer(a) : variables.has(b) ? variables.integer(b) : variables.integer(c);
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
