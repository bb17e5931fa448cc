#pragma once
/// @file
/// One whole formation of a job, timed and checked.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "bench/rendezvous/client_process.hpp"
#include "bench/rendezvous/store_process.hpp"

namespace bench {

struct FormationTimes {
  double formed_seconds = 0;  ///< until every rank had its Membership
  double seconds = 0;         ///< until every rank had passed add and wait as well
  double store_bytes = 0;     ///< by which the store grew, all ranks being there
};

inline double seconds_between(dtrain::Deadline::Clock::time_point a, dtrain::Deadline::Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

/// From the moment when all processes are told to begin. @throws Error where anything is not as it must be
inline FormationTimes time_formation(const StoreProcess& store, const rendezvous::Secret& secret, int world_size,
                                     int processes) {
  std::vector<ClientProcess> clients;
  clients.reserve(static_cast<std::size_t>(processes));
  for (int i = 0; i < processes; ++i) {
    const auto share = [&](int of) { return static_cast<int>(std::int64_t{world_size} * of / processes); };
    clients.emplace_back(ClientOptions{store.port(), secret, world_size, share(i), share(i + 1) - share(i)});
  }
  const auto begin = dtrain::Deadline::Clock::now();
  for (const ClientProcess& client : clients) {
    client.begin();
  }
  FormationTimes times;
  std::int64_t sum = 0;
  std::string job;
  for (const ClientProcess& client : clients) {
    const ClientResult result = client.result(dtrain::Deadline::after(std::chrono::seconds(150)));
    if (result.error[0] != 0 || (!job.empty() && job != result.job.data())) {
      throw dtrain::Error(dtrain::Errc::protocol, "the formation of " + std::to_string(world_size) + " ranks: " +
                                                      (result.error[0] != 0 ? result.error.data() : "two jobs"));
    }
    job = result.job.data();
    sum += result.sum;
    times.formed_seconds = std::max(times.formed_seconds, seconds_between(begin, result.formed));
    times.seconds = std::max(times.seconds, seconds_between(begin, result.done));
  }
  if (sum != std::int64_t{world_size} * (world_size + 1) / 2) {
    throw dtrain::Error(dtrain::Errc::protocol, "the sums of the ranks' additions are wrong");
  }
  const StoreFacts facts = store.now();
  times.store_bytes = static_cast<double>(facts.resident_bytes) - static_cast<double>(store.at_first().resident_bytes);
  for (const ClientProcess& client : clients) {
    client.leave();
  }
  for (const ClientProcess& client : clients) {
    client.await_left();
  }
  return times;
}

}  // namespace bench
