#pragma once
/// @file
/// Job port: the store's port, from MASTER_PORT or computed from a job number that all processes of the job have.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/identity/formats/orte_uri.hpp"
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
    if (const std::optional<std::uint64_t> job = variables.wide_integer("SLURM_JOB_ID")) {
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

}  // namespace DTRAIN_NAMESPACE::identity
