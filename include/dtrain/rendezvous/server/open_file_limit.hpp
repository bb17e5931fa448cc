#pragma once
/// @file
/// Open-file limit: check that a process may open the files that a job's store needs.

#include <cstddef>
#include <optional>
#include <string>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/process/open_files.hpp"
#include "dtrain/rendezvous/server/store_job_options.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// The cause of failure if this process may open too few files; nothing if it may open enough. Checked before ranks
/// join: ranks that find no free file would only time out.
inline std::optional<Cause> too_few_files(const StoreJobOptions& job) {
  constexpr std::size_t spare = 4;  // own session, one pending connection, files that are open briefly
  const auto members = static_cast<std::size_t>(job.world_size);
  const std::size_t needed = open_files() + members + job.further_files + spare;
  const std::size_t limit = open_files_limit().value_or(needed);
  if (needed <= limit) {
    return std::nullopt;
  }
  const std::string number = std::to_string(needed);
  return Cause{CauseKind::exception,
               -1,
               {},
               job.owner + " serves the store of " + std::to_string(members) +
                   (job.role == ClientRole::rank ? " ranks" : " launchers") + " and needs " + number +
                   " open files for that, but may open " + std::to_string(limit) +
                   "; raise the hard limit (ulimit -Hn " + number +
                   ", systemd's LimitNOFILE, docker's --ulimit nofile)"};
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
