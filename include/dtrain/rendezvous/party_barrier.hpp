#pragma once
/// @file
/// A barrier for some of a job's ranks, made of a store's other operations.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/task.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Counts who comes; the last of a round opens its gate, and takes away that of the round before, which all have
/// passed. At most four messages there and back for the last, two for any other. A rank is in a barrier of one name
/// once at a time, and one that timed out counts as having come. @param store a handle whose prefix only the parties
/// use
template <class Store>
async::Task<void> party_barrier(Store store, std::string name, std::int64_t parties, Deadline deadline) {
  const std::string prefix = "barrier/" + name + "/";
  async::Task<std::int64_t> arriving = store.add(prefix + "arrived", 1, deadline);
  const std::int64_t arrived = co_await std::move(arriving);
  const std::int64_t round = (arrived - 1) / parties;
  const std::string gate = prefix + std::to_string(round);
  if (arrived % parties != 0) {
    async::Task<void> waiting = store.wait(std::vector<std::string>{gate}, deadline);
    co_await std::move(waiting);
    co_return;
  }
  async::Task<void> opening = store.set(gate, "", deadline);
  co_await std::move(opening);
  if (round > 0) {
    async::Task<bool> erasing = store.erase(prefix + std::to_string(round - 1), deadline);
    static_cast<void>(co_await std::move(erasing));
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
