#pragma once
/// @file
/// From a worker's identity to its place at the rendezvous.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/launch/worker.hpp"
#include "dtrain/rendezvous/participant.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// At least as long, and short enough to be counted with.
inline std::chrono::milliseconds in_milliseconds(std::chrono::nanoseconds time) {
  constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365 * 100);
  return std::chrono::ceil<std::chrono::milliseconds>(std::min(time, longest));
}

/// What is certain is stated, so that the rendezvous checks it; what is provisional is left for it to compute.
/// @param agreed what must be the same on all ranks (rendezvous/agreed_terms.hpp)
/// @throws Error (identity) where several ranks have no address to meet at.
inline rendezvous::ParticipantOptions participant_options(const Worker& worker, std::string agreed = {}) {
  const identity::ProcessIdentity& who = worker.identity;
  const auto certain = [&who](const char* field, const std::optional<int>& value) {
    return who.is_provisional(field) ? std::nullopt : value;
  };
  if (who.world_size > 1 && (!who.master_addr || !who.master_port)) {
    throw Error(Errc::identity, "rank " + std::to_string(who.rank) + " of " + std::to_string(who.world_size) +
                                    " does not know where the job meets; set MASTER_ADDR and MASTER_PORT to an address "
                                    "of rank 0's host and a free port there");
  }
  rendezvous::ParticipantOptions options;
  options.rank = who.rank;
  options.world_size = who.world_size;
  options.local_rank = certain("local_rank", who.local_rank);
  options.local_world_size = certain("local_world_size", who.local_world_size);
  options.node_rank = certain("node_rank", who.node_rank);
  options.node_count = certain("node_count", who.node_count);
  options.master_host = who.master_addr.value_or("127.0.0.1");
  options.master_port = static_cast<std::uint16_t>(who.master_port.value_or(identity::default_master_port));
  options.host_store = worker.hosts_store;
  options.timeout = in_milliseconds(worker.timeout);
  options.secret = worker.secret;
  options.generation = static_cast<std::uint64_t>(who.attempt);
  options.job = worker.job.name;
  options.origin = worker.job.origin;
  if (who.elastic && who.master_addr) {  // torchrun's port may be taken by another torchrun; its name may be "none"
    options.job += "@" + *who.master_addr + ":" + std::to_string(options.master_port);
    options.master_ports = static_cast<std::uint16_t>(std::min(16, 65536 - int{options.master_port}));
  }
  options.limits.liveness = in_milliseconds(worker.liveness);
  options.host_id = worker.host_id_override;
  options.interface = worker.interface;
  options.agreed = std::move(agreed);
  return options;
}

}  // namespace DTRAIN_NAMESPACE::launch
