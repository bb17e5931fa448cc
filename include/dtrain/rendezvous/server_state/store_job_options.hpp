#pragma once
/// @file
/// Store options: a job that a rank's or launcher's store serves, and the options that all jobs of a server share.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/process/open_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// The rank that opens a job's store, with which joining ranks are compared.
struct StoreOpener {
  std::int64_t process = 0;  ///< process id; 0: no rank of the job opens the store, and only job names are compared
  std::string host_id{};
  Origin origin{};
  std::string listens_at{};  ///< for the error of a join timeout: "rank 0 listens at 10.0.0.2:29500, and ..."
};

/// One job of a server.
struct StoreJobOptions {
  DTRAIN_MEMBERS_NOT_INLINED(StoreJobOptions);

  ClientRole role = ClientRole::rank;
  int world_size = 1;
  std::uint64_t attempt = 0;  ///< ranks of an earlier one are refused
  std::string job{};          ///< job name; empty: every name may join, unless the opener has an origin
  /// Process that states the world size, for error sentences: "rank 0 on host a", "the launcher on host a".
  std::string owner = "the store";
  StoreOpener opener{};           ///< the rank that opens the store, if a rank does
  std::size_t further_files = 0;  ///< files that this process will open beside the job's connections
  Deadline join_deadline = Deadline::after(std::chrono::seconds(600));  ///< all ranks join by then
  /// How long the loss of a rank may wait for a more precise cause than the end of its connection. A launcher knows how
  /// its worker ended, but may learn it after the end of the connection.
  std::chrono::milliseconds loss_grace{0};

  /// @name Called on the loop's thread. They must not throw, post a failure, open a job or destroy the server.
  /// @{
  std::function<void(const Cause&)> on_failure = [](const Cause&) {};
  std::function<void(int rank, const std::string& host)> on_joined = [](int, const std::string&) {};
  std::function<void(int rank)> on_left = [](int) {};
  /// @}
};

/// Options that all jobs of a server share.
struct ServerOptions {
  std::optional<Secret> secret{};  ///< every process must know it to join
  Limits limits{};
};

/// The cause of failure if this process may open too few files; nullopt if it may open enough. Checked before ranks
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
