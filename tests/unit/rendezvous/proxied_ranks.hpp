#pragma once
/// @file
/// Two ranks of a job, one of which reaches the store through a proxy that a test can cut.

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "support/cutting_proxy.hpp"
#include "unit/rendezvous/store_fixture.hpp"

namespace rendezvous_test {

/// Rank 0 beside the store, rank 1 behind the proxy; both have joined.
inline std::vector<std::unique_ptr<ControlPlane>> two_ranks(const StoreProcess& store,
                                                            const dtrain_test::CuttingProxy& proxy) {
  std::vector<std::unique_ptr<ControlPlane>> ranks(2);
  const auto errors = on_ranks(2, [&](int rank) {
    ranks[static_cast<std::size_t>(rank)] =
        std::make_unique<ControlPlane>(rank_options(rank, 2, rank == 1 ? proxy.port() : store.port()));
  });
  REQUIRE(errors == std::vector<std::string>(2));
  return ranks;
}

}  // namespace rendezvous_test
