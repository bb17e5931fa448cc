#pragma once
/// @file
/// A job whose ranks use the store.

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "support/expect_error.hpp"
#include "unit/rendezvous/store_fixture.hpp"

namespace rendezvous_test {

inline Deadline shortly() {
  return Deadline::after(std::chrono::milliseconds(50));
}

/// on_ranks() of a job in which no rank may throw.
inline void run_ranks(int world_size, const std::function<void(int)>& body) {
  CHECK(on_ranks(world_size, body) == std::vector<std::string>(static_cast<std::size_t>(world_size)));
}

/// Runs `body(control_plane)` on each rank of a job, all of which leave in order.
inline void run_job(int world_size, const std::function<void(ControlPlane&)>& body) {
  StoreProcess store(world_size);
  run_ranks(world_size, [&](int rank) {
    ControlPlane control_plane(rank_options(rank, world_size, store.port()));
    body(control_plane);
    control_plane.leave_blocking(soon());
  });
}

}  // namespace rendezvous_test
