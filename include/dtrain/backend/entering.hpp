#pragma once
/// @file
/// What a backend does that has to begin before the ranks of a job meet.

#include <concepts>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// What a process was told of itself.
struct Newcomer {
  int rank = 0;
  int world_size = 1;
  std::string launcher;               ///< who told it: "openmpi"
  std::optional<std::string> secret;  ///< of the job, where it has one
  /// Among the ranks of this node, where it was told.
  std::optional<int> local_rank{};
  std::optional<int> local_world_size{};
};

/// What the backend makes of it.
struct Entry {
  std::shared_ptr<void> kept;         ///< by the job, until its end
  std::optional<std::string> secret;  ///< the job's
};

/// Collective, blocking: it may compare the identity with what it knows itself, and bring the job's secret along.
template <class B>
concept Enters = requires(const Newcomer& newcomer, Deadline deadline) {
  { B::enter_blocking(newcomer, deadline) } -> std::same_as<Entry>;
};

}  // namespace DTRAIN_NAMESPACE::backend
