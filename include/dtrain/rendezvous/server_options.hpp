#pragma once
/// @file
/// What a store is to know of its job before anybody joins.

#include <chrono>
#include <functional>
#include <string>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/rendezvous/limits.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

struct ServerOptions {
  int world_size = 1;
  /// Whose world size it is, in sentences: "rank 0 on host a", "the launcher on host a".
  std::string owner = "the store";
  Deadline formation = Deadline::after(std::chrono::seconds(600));  ///< by when all ranks have joined
  Limits limits{};
  /// How long a closed connection waits before it becomes the job's failure, so that a launcher can post what it knows
  /// better ("killed by signal 9"), which arrives a little later.
  std::chrono::milliseconds loss_grace{0};

  /// @name Called on the loop's thread. They must not throw, nor destroy the server.
  /// @{
  std::function<void(const Cause&)> on_failure{};
  std::function<void(int rank, const std::string& host)> on_joined{};
  std::function<void(int rank)> on_left{};
  /// @}
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
