#pragma once
/// @file
/// Control-plane options: identity and settings with which a rank joins its job; RankProcess derives from them.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/membership/origin.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// A value that refers to no other object.
struct ControlPlaneOptions {
  DTRAIN_MEMBERS_DEFINED_APART(ControlPlaneOptions);

  identity::ProcessIdentity identity{};
  bool hosts_store = false;  ///< this rank opens the store at the master address
  /// Number of ports from master_port on; the store listens at the first free one. More than 1 requires a job name, by
  /// which ranks recognise their store.
  std::uint16_t master_ports = 1;
  std::optional<std::string> host_id{};     ///< DTRAIN_HOST_ID
  std::optional<std::string> interface {};  ///< DTRAIN_INTERFACE: address of this rank, and of a store that it hosts
  std::optional<Secret> secret{};           ///< of the job, if it has one
  Origin origin{};                          ///< further facts that distinguish the job from others
  std::string settings{};                   ///< must be equal on all ranks (membership/membership.hpp)
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);  ///< of the rendezvous, and of a collective
  Limits limits{};
};

/// @throws Error (identity) for several ranks without an address of the store, or with one that this rank cannot reach
void check_master_address(const ControlPlaneOptions& options);

}  // namespace DTRAIN_NAMESPACE::rendezvous

#if DTRAIN_DEFINITIONS

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/socket_address.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

DTRAIN_DEFINE_MEMBERS(ControlPlaneOptions);

DTRAIN_DEFINED void check_master_address(const ControlPlaneOptions& options) {
  const identity::ProcessIdentity& identity = options.identity;
  if (identity.world_size > 1 && (!identity.master_addr || !identity.master_port)) {
    throw_error(
        Errc::identity,
        "rank {} of {} does not know the address of the job's store; set MASTER_ADDR and MASTER_PORT to an address "
        "of rank 0's host and a free port there",
        {identity.rank, identity.world_size});
  }
  const bool is_elsewhere = !identity.is_provisional("node_rank") && identity.node_rank.value_or(0) != 0;
  const bool may_be_here = options.secret || options.interface;  // else rank 0 does not listen at 0.0.0.0
  if (!options.hosts_store && net::is_any_host(identity.master_addr.value_or("")) && (is_elsewhere || !may_be_here)) {
    throw_error(Errc::identity,
                "rank {} cannot connect to the job's store at {}, which means every interface of rank 0's host; set "
                "MASTER_ADDR to an address of that host",
                {identity.rank, *identity.master_addr});
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

#endif  // DTRAIN_DEFINITIONS
