#pragma once
/// @file
/// Open-file limit: how many ranks and pending connections the store of a process may have.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/process/open_files.hpp"
#include "dtrain/core/text/format_text.hpp"
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
  return Cause{
      CauseKind::exception,
      -1,
      {},
      format_text("{} serves the store of {}{} and needs {} open files for that, but may open {}; raise the hard limit "
                  "(ulimit -Hn {}, systemd's LimitNOFILE, docker's --ulimit nofile)",
                  {job.owner, members, job.role == ClientRole::rank ? " ranks" : " launchers", needed, limit, needed})};
}

/// Pending connections that a server keeps open before they join: `wanted`, but at most half of the files that this
/// process may open. The rest is for joined ranks.
inline std::size_t pending_connection_limit(std::size_t wanted) noexcept {
  return std::min(wanted, std::max(open_files_limit().value_or(2 * wanted) / 2, std::size_t{1}));
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
