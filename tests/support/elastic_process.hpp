#pragma once
/// @file
/// elastic_process(): the process of a worker of an elastic job, for workers that are threads of one process.

#include <chrono>
#include <cstdint>

#include "dtrain/launch/rank_process.hpp"

namespace support {

/// As a launcher tells it to the worker `slot` of a job of `most` workers at most, whose store listens at that port.
inline dtrain::launch::RankProcess elastic_process(std::uint16_t port, int slot, int most,
                                                   std::chrono::seconds timeout = std::chrono::seconds(60)) {
  dtrain::launch::RankProcess process;
  process.identity.world_size = most;
  process.identity.local_rank = slot;
  process.identity.master_addr = "127.0.0.1";
  process.identity.master_port = port;
  process.min_ranks = 1;
  process.timeout = timeout;
  return process;
}

}  // namespace support
