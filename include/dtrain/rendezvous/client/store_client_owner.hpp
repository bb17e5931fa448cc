#pragma once
/// @file
/// StoreClientOwner: owner of a rank's session with the store of its job. ControlPlane and NodeRendezvous hold one.

#include <memory>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

class StoreClient;

/// Ends the session when its owner goes. Tasks that wait for a response then throw; until then they share the client.
struct EndStoreSession {
  inline void operator()(StoreClient* ended) noexcept;  ///< in store_client.hpp
  std::shared_ptr<StoreClient> client{};
};

/// Without an earlier StoreClient::leave(), the job counts the rank as lost when this goes. Threads: the control
/// loop's.
using StoreClientOwner = std::unique_ptr<StoreClient, EndStoreSession>;

}  // namespace DTRAIN_NAMESPACE::rendezvous
