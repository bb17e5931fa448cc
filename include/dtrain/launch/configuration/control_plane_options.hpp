#pragma once
/// @file
/// Control-plane options of a worker, from its identity and settings.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/launch/configuration/settings.hpp"
#include "dtrain/launch/rank_process.hpp"
#include "dtrain/net/socket_address.hpp"
#include "dtrain/rendezvous/control/control_plane.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Sets identity fields that are certain, which the rendezvous then checks. Leaves provisional fields unset, and the
/// rendezvous computes them.
/// @param settings values that must be equal on all ranks (rendezvous/membership/job_settings.hpp)
/// @throws Error (identity) for several ranks without an address of the store, or with one that this rank cannot reach
inline rendezvous::ControlPlaneOptions control_plane_options(const RankProcess& worker, std::string settings = {}) {
  const identity::ProcessIdentity& identity = worker.identity;
  const auto certain = [&identity](const char* field, const std::optional<int>& value) {
    return identity.is_provisional(field) ? std::nullopt : value;
  };
  if (identity.world_size > 1 && (!identity.master_addr || !identity.master_port)) {
    throw Error(Errc::identity,
                "rank " + std::to_string(identity.rank) + " of " + std::to_string(identity.world_size) +
                    " does not know the address of the job's store; set MASTER_ADDR and MASTER_PORT to an address "
                    "of rank 0's host and a free port there");
  }
  const bool is_elsewhere = certain("node_rank", identity.node_rank).value_or(0) != 0;
  const bool may_be_here = worker.secret || worker.interface;  // else rank 0 does not listen at 0.0.0.0
  if (!worker.hosts_store && net::is_any_host(identity.master_addr.value_or("")) && (is_elsewhere || !may_be_here)) {
    throw Error(Errc::identity, "rank " + std::to_string(identity.rank) + " cannot connect to the job's store at " +
                                    *identity.master_addr + ", which means every interface of rank 0's host; set " +
                                    "MASTER_ADDR to an address of that host");
  }
  rendezvous::ControlPlaneOptions options;
  options.rank = identity.rank;
  options.world_size = identity.world_size;
  options.local_rank = certain("local_rank", identity.local_rank);
  options.local_world_size = certain("local_world_size", identity.local_world_size);
  options.node_rank = certain("node_rank", identity.node_rank);
  options.node_count = certain("node_count", identity.node_count);
  options.master_host = identity.master_addr.value_or("127.0.0.1");
  options.master_port = static_cast<std::uint16_t>(identity.master_port.value_or(identity::default_master_port));
  options.host_store = worker.hosts_store;
  options.timeout = in_milliseconds(worker.timeout);
  options.secret = worker.secret;
  options.attempt = static_cast<std::uint64_t>(identity.attempt);
  options.job = worker.job.name;
  options.origin = worker.job.origin;
  if (identity.elastic &&
      identity.master_addr) {  // torchrun's port may be taken by another torchrun; its name may be "none"
    options.job += "@" + *identity.master_addr + ":" + std::to_string(options.master_port);
    options.master_ports = static_cast<std::uint16_t>(std::min(16, 65536 - int{options.master_port}));
  }
  options.limits.liveness = in_milliseconds(worker.liveness);
  options.host_id = worker.host_id_override;
  options.interface = worker.interface;
  options.settings = std::move(settings);
  return options;
}

}  // namespace DTRAIN_NAMESPACE::launch
