#pragma once
/// @file
/// The concept HasPreJoin: a backend's setup before the ranks of a job join.

#include <concepts>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// The identity of this process, as its launcher states it.
struct ProcessInfo {
  int rank = 0;
  int world_size = 1;
  std::string launcher;               ///< source of the identity: "openmpi"
  std::optional<std::string> secret;  ///< the job's, if known
  /// On this node, if the launcher states it.
  std::optional<int> local_rank{};
  std::optional<int> local_world_size{};
};

/// Result of HasPreJoin.
struct PreJoinResult {
  std::shared_ptr<void> keep_alive;   ///< the job holds it until its end
  std::optional<std::string> secret;  ///< the job's
};

/// Collective, blocking. May verify the identity against the backend's own, and may supply the job's secret.
template <class B>
concept HasPreJoin = requires(const ProcessInfo& process_info, Deadline deadline) {
  { B::pre_join_blocking(process_info, deadline) } -> std::same_as<PreJoinResult>;
};

}  // namespace DTRAIN_NAMESPACE::backend
