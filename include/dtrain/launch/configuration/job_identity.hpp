#pragma once
/// @file
/// Job identity: name and origin of the job of this process, which the store compares when the process joins.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/launch/configuration/program_build.hpp"
#include "dtrain/launch/configuration/starter.hpp"
#include "dtrain/rendezvous/membership/origin.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// The job's name (empty if it has none), and further properties that distinguish it from other jobs.
struct JobIdentity {
  std::string name;
  rendezvous::Origin origin;
};

/// A job of MPICH's mpiexec has no name that a process can read, but all mpiexec proxies connect to the same address.
/// @param command as in Starter. @returns "hydra=host-a:43789"; nullopt if the command is no such proxy
inline std::optional<std::string> hydra_job(std::string_view command) {
  const std::size_t at = command.find(hydra_proxy_flag);
  const std::string_view rest = at == std::string_view::npos ? "" : command.substr(at + hydra_proxy_flag.size());
  const std::string_view address = rest.substr(0, rest.find('\0'));
  return address.empty() ? std::nullopt : std::optional("hydra=" + std::string(address));
}

/// The job's identity from the environment and, if it has several ranks, from the process's program and starter.
/// Blocking: reads files of the kernel.
inline JobIdentity job_identity(const identity::Variables& variables, const identity::ProcessIdentity& identity,
                                const SystemFiles& files = SystemFiles()) {
  JobIdentity job;
  job.name = identity.job.value_or("");
  if (identity.world_size == 1) {
    return job;
  }
  rendezvous::Origin& origin = job.origin;
  origin.is_exact_job = identity.is_exact_job;
  origin.one_starter = identity.one_starter;
  origin.program = own_program_name();
  origin.build = own_build();
  struct ::stat space {};
  origin.process_space = ::stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
  // torchrun's agent may have its own RANK, the node's, but it has no run id.
  const std::string own_variable = identity.elastic ? "TORCHELASTIC_RUN_ID" : identity.rank_variable;
  const std::optional<std::string> own_value = variables.text(own_variable);
  const std::optional<Starter> starter =
      starter_of(files, ::getppid(), own_value ? own_variable + "=" + *own_value : std::string());
  if (starter) {
    origin.starter = starter->process;
    origin.starter_began = starter->began;
    origin.starter_name = starter->name;
    const std::optional<std::string> hydra =
        identity.is_exact_job || identity.rank_variable != "PMI_RANK" ? std::nullopt : hydra_job(starter->command);
    origin.is_exact_job = identity.is_exact_job || hydra;
    job.name = hydra.value_or(job.name);
  }
  return job;
}

}  // namespace DTRAIN_NAMESPACE::launch
