#pragma once
/// @file
/// Environments that say half of what is needed, and the sentences that help.

#include <array>
#include <string>

#include "dtrain/identity/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

/// The variables that say "one of several processes" under launchers that no source of this version reads.
struct UnreadLauncher {
  const char* launcher;
  const char* rank;
  const char* size;
};
inline constexpr std::array<UnreadLauncher, 7> unread_launchers{{
    {"horovod", "HOROVOD_RANK", "HOROVOD_SIZE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
    {"mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
    {"flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
    {"pmi", "PMI_RANK", "PMI_SIZE"},
    {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
}};

/// Slurm's names for steps that start no tasks (batch, extern, interactive, pending) are the numbers 4294967290 to
/// ..93.
inline bool is_real_slurm_step(const Variables& variables) {
  const std::string step = variables.text("SLURM_STEP_ID").value_or("");
  return !step.empty() && !(step >= "4294967290" && step <= "4294967293" && step.size() == 10);
}

}  // namespace detail

/// One of several processes of such a launcher must not train alone, silently, beside its siblings.
/// @throws IdentityError (unknown-launcher), which says what to set.
inline void check_unread_launchers(const Variables& variables) {
  for (const detail::UnreadLauncher& unread : detail::unread_launchers) {
    const std::optional<int> size = parse_integer(variables.text(unread.size).value_or(""));
    if (!variables.has(unread.rank) || !size || *size < 2 ||
        (std::string(unread.launcher) == "slurm" && !detail::is_real_slurm_step(variables))) {
      continue;
    }
    throw IdentityError(IdentityErrc::unknown_launcher,
                        std::string(unread.rank) + "=" + *variables.text(unread.rank) + " of " + unread.size + "=" +
                            std::to_string(*size) + " says that " + unread.launcher +
                            " started this process, which this version does not read; set RANK, WORLD_SIZE, LOCAL_RANK "
                            "and MASTER_ADDR from it, or DTRAIN_LAUNCHER=none for a single process");
  }
}

/// Called where no source counts. @throws IdentityError: node-level-env, pmix-only, no-rank, no-world-size.
inline void check_incomplete(const Variables& variables) {
  const std::optional<std::string> nodes = variables.text("PET_NNODES");
  const std::string per_node = variables.text("PET_NPROC_PER_NODE").value_or("1");
  if (nodes && !variables.has("RANK") && (*nodes != "1" || per_node != "1")) {
    throw IdentityError(IdentityErrc::node_level_env,
                        quoted("PET_NNODES", *nodes) + " with " + quoted("PET_NPROC_PER_NODE", per_node) +
                            " describes a node, not a process; start the program through the per-node launcher "
                            "(dtrain::launch::PerNode), or set RANK and WORLD_SIZE for every process");
  }
  check_unread_launchers(variables);
  if (const std::optional<std::string> rank = variables.text("PMIX_RANK")) {
    throw IdentityError(IdentityErrc::pmix_only, quoted("PMIX_RANK", *rank) +
                                                     " is set but no variable gives the number of processes; set "
                                                     "DTRAIN_RANK and DTRAIN_WORLD_SIZE on every process");
  }
  const std::optional<int> size = variables.integer("WORLD_SIZE");
  const std::optional<std::string> rank = variables.text("RANK");
  if (size && *size > 1 && !rank) {
    throw IdentityError(IdentityErrc::no_rank, "WORLD_SIZE=" + std::to_string(*size) +
                                                   " is set but RANK is not; set RANK to 0.." +
                                                   std::to_string(*size - 1) + ", another on each process");
  }
  if (rank && !size) {
    throw IdentityError(
        IdentityErrc::no_world_size,
        quoted("RANK", *rank) + " is set but WORLD_SIZE is not; set WORLD_SIZE to the number of processes");
  }
}

}  // namespace DTRAIN_NAMESPACE::identity
