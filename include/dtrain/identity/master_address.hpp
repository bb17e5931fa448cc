#pragma once
/// @file
/// Master address: host and port of the store, stated or derived from the variables of launchers like mpirun;
/// complete_identity(), with which the sources of these launchers end.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/identity/environment/launcher_variables.hpp"
#include "dtrain/identity/environment/slurm_step.hpp"
#include "dtrain/identity/formats/addresses.hpp"
#include "dtrain/identity/process_identity.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// Slurm's numbers that identify the job: job and step id (step), job id for an MPI inside the allocation, or none.
enum class SlurmNumbers : std::uint8_t { none, allocation, step };

namespace detail {

/// N of PMIX_NAMESPACE="...-N@M", the form of PRRTE. nullopt for the forms of Slurm and Open MPI 4.
inline std::optional<std::uint64_t> prrte_job(std::string_view name) {
  const std::size_t at = name.rfind('@');
  const std::size_t dash = name.substr(0, at).rfind('-');
  if (at == std::string_view::npos || dash == std::string_view::npos || !parse_wide_integer(name.substr(at + 1))) {
    return std::nullopt;
  }
  return parse_wide_integer(name.substr(dash + 1, at - dash - 1));
}

inline std::optional<std::uint64_t> job_number(const Variables& variables, SlurmNumbers slurm) {
  if (const auto hnp = parse_orte_uri(variables.text("OMPI_MCA_orte_hnp_uri").value_or(""))) {
    return hnp->job >> 16;
  }
  if (const auto job = prrte_job(variables.text("PMIX_NAMESPACE").value_or(""))) {
    return job;
  }
  if (slurm != SlurmNumbers::none) {
    if (const std::optional<std::uint64_t> job = variables.wide_integer(slurm_job_id_variable(variables))) {
      constexpr std::uint64_t between_steps = 257;
      const std::uint64_t step = variables.wide_integer("SLURM_STEP_ID").value_or(0);
      return *job + (slurm == SlurmNumbers::step ? between_steps * step : 0);
    }
  }
  return variables.wide_integer("LSB_JOBID");
}

}  // namespace detail

/// MASTER_PORT. Else a port from 61440 to 65535, computed from the job's number: above Linux's ephemeral range, and
/// rarely the same for two jobs on a machine. Else default_master_port.
/// @throws IdentityError: bad-port, bad-integer
inline int job_port(const Variables& variables, SlurmNumbers slurm) {
  constexpr std::uint64_t first = 61440;
  constexpr std::uint64_t count = 4096;
  if (const std::optional<int> given = variables.port("MASTER_PORT")) {
    return *given;
  }
  const std::optional<std::uint64_t> job = detail::job_number(variables, slurm);
  return job ? static_cast<int>(first + *job % count) : default_master_port;
}

namespace detail {

/// Reads Azure ML's variables for the host of rank 0. Uses Azure's port, not the port in AZ_BATCH_MASTER_NODE.
inline bool find_azure_master_address(const Variables& variables, ProcessIdentity& identity) {
  constexpr int azure_port = 6105;
  const std::optional<std::string_view> batch = variables.text("AZ_BATCH_MASTER_NODE");
  const std::optional<std::string_view> mpi = variables.text("AZ_BATCHAI_MPI_MASTER_NODE");
  const bool is_one_node = on_one_node(identity);
  if (is_one_node ? !batch && !mpi : !batch) {
    return false;
  }
  identity.master_addr = is_one_node
                             ? mpi.value_or(loopback_address)
                             : split_host_port("AZ_BATCH_MASTER_NODE", *batch, IdentityErrc::no_master_addr).host;
  identity.master_port = variables.port("MASTER_PORT").value_or(azure_port);
  return true;
}

/// Open MPI 4 gives every process the address of mpirun. Guesses that rank 0 runs on mpirun's host. Only rank 0 can
/// verify that: it is on that host if its own daemon is mpirun itself.
/// @throws IdentityError (no-master-addr) on rank 0 if it is on another host
inline bool guess_mpirun_host(const Variables& variables, ProcessIdentity& identity) {
  const std::string_view uri = variables.text("OMPI_MCA_orte_hnp_uri").value_or("");
  const std::optional<OrteUri> mpirun = parse_orte_uri(uri);
  if (!mpirun || mpirun->host.empty()) {
    return false;
  }
  const std::string_view daemon_uri = variables.text("OMPI_MCA_orte_local_daemon_uri").value_or("");
  const std::optional<OrteUri> daemon = parse_orte_uri(daemon_uri);
  if (identity.rank == 0 && daemon && (daemon->job != mpirun->job || daemon->daemon != mpirun->daemon)) {
    throw_identity_error(
        IdentityErrc::no_master_addr,
        "MASTER_ADDR is not set, and mpirun ran on {}, which is not the node of rank 0 ({} is another daemon than {}); "
        "pass mpirun -x MASTER_ADDR=HOST, the host of rank 0",
        {mpirun->host, quoted("OMPI_MCA_orte_hnp_uri", uri), quoted("OMPI_MCA_orte_local_daemon_uri", daemon_uri)});
  }
  identity.master_addr = mpirun->host;
  return true;
}

}  // namespace detail

/// Variables that an MPI-like source may use to find its master.
struct MasterHints {
  bool slurm_allocation = false;  ///< the launcher places its processes in the order of the allocation's nodes
  bool open_mpi = false;
  const char* how = "";  ///< the way to pass a variable to every process, for the sentence
};

/// Derives fields on one node, checks ranges, and sets master_addr and master_port. Adds "master_addr" to `provisional`
/// if it is a guess.
/// @param stated the variables of `identity`, as Variables::stated() returns them
/// @throws IdentityError: rank-out-of-range, no-master-addr, bad-port, bad-hostlist, ambiguous-address
inline void complete_identity(const Variables& variables, const MasterHints& hints, const std::string& stated,
                              ProcessIdentity& identity) {
  complete_one_node(identity);
  check_ranges(identity, stated);
  identity.master_addr = variables.text("MASTER_ADDR");
  if (!identity.master_addr && hints.open_mpi && detail::find_azure_master_address(variables, identity)) {
    return;
  }
  identity.master_port = job_port(variables, hints.slurm_allocation ? SlurmNumbers::allocation : SlurmNumbers::none);
  if (identity.master_addr) {
    return;
  }
  if (on_one_node(identity)) {
    identity.master_addr = loopback_address;
    return;
  }
  if (hints.slurm_allocation && variables.has("SLURM_JOB_NODELIST")) {
    identity.master_addr = first_slurm_node(variables, "SLURM_JOB_NODELIST");
  } else if (!hints.open_mpi || !detail::guess_mpirun_host(variables, identity)) {
    throw_identity_error(
        IdentityErrc::no_master_addr,
        "{}: MASTER_ADDR is not set, and the host of rank 0 is not in the environment ({}); set MASTER_ADDR on every "
        "process to the host of rank 0{}",
        {identity.launcher, stated, hints.how});
  }
  identity.provisional.push_back("master_addr");
}

}  // namespace DTRAIN_NAMESPACE::identity
