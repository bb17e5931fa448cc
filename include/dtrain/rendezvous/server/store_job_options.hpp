#pragma once
/// @file
/// What a store is to know of a job before anybody joins.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/rendezvous/protocol/limits.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// The process that opens a job's store and is one of its ranks. Ranks of the job are compared with it.
struct StoreOpener {
  std::int64_t process = 0;  ///< its process id; 0: no rank of the job opens the store, and nothing is compared
  std::string host_id{};
  Origin origin{};
};

/// One job of a server's.
struct StoreJobOptions {
  ClientRole role = ClientRole::rank;
  int world_size = 1;
  std::uint64_t attempt = 0;  ///< ranks of an earlier one are refused
  std::string job{};          ///< its name; empty: every name may join, unless the opener has an origin
  /// Whose world size it is, in sentences: "rank 0 on host a", "the launcher on host a".
  std::string owner = "the store";
  StoreOpener opener{};           ///< the rank that opens the store, where it is one
  std::size_t further_files = 0;  ///< that this process will open beside the job's connections
  Deadline join_deadline = Deadline::after(std::chrono::seconds(600));  ///< by when all ranks have joined

  /// @name Called on the loop's thread. They must not throw, nor destroy the server or open a job.
  /// @{
  std::function<void(const Cause&)> on_failure{};
  std::function<void(int rank, const std::string& host)> on_joined{};
  std::function<void(int rank)> on_left{};
  /// @}
};

/// What all jobs of a server share.
struct ServerOptions {
  std::optional<Secret> secret{};  ///< that everybody has to know
  Limits limits{};
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
