#pragma once
/// @file
/// rendezvous::JoinedJob: a rank's membership in its job, from joining to leaving.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/rendezvous/client/store_client.hpp"
#include "dtrain/rendezvous/client/store_connector.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// The client side of the rendezvous. Its layers, from the lowest: FramedConnection (a connection with its frames),
/// handshake() and StoreConnector (Hello, Challenge, Join, until the store accepts), ResumableSession (numbers and
/// keeps frames), ClientSession (heartbeats, reconnection), StoreClient (pairs requests with responses), JoinedJob.
///
/// Lifetime: the loop outlives it. Destroying it without leave() closes the connection; the job then counts this rank
/// as lost. Threads: the loop's, destruction included.
class JoinedJob {
 public:
  /// Connects to the store, with retries until the store listens, and waits until all ranks have joined.
  /// @param failure receives the job's first cause, during the join and for the session's life
  /// @throws Error (refused) with the store's sentence, or if one side does not know the other's secret; the job's
  /// first cause; Error (timeout); and the errors of connecting
  static async::Task<std::unique_ptr<JoinedJob>> join(async::EventLoop& loop, StoreAddress address, JoinRequest request,
                                                      std::shared_ptr<FailureLatch> failure, Deadline deadline) {
    const std::string store = address.text();
    const int rank = request.info.rank;
    const std::string doing = "joining the job at " + store + " as " +
                              (address.role == ClientRole::rank ? "rank " : "node ") + std::to_string(rank);
    StoreConnector connector(loop, std::move(address), request, *failure, doing, deadline);
    ConnectedStore connected = co_await connector.connect_and_join();
    const net::SocketAddress own_end = connected.connection->tcp.local().unmapped();
    auto client = std::make_shared<StoreClient>(loop, std::move(connected.address), connected.accepted,
                                                std::move(connected.connection), rank, std::move(failure));
    std::optional<Membership> membership = co_await client->wait_for_welcome(deadline);
    if (!membership) {
      throw Error(Errc::timeout, doing + ": the deadline passed; the store did not say which ranks are missing");
    }
    if (membership->rank != rank || membership->world_size != request.world_size) {
      throw Error(Errc::protocol, doing + ": the store answered for another rank");
    }
    if (!own_end.is_loopback()) {
      membership->route_address = own_end.host();
    }
    co_return std::unique_ptr<JoinedJob>(new JoinedJob(*std::move(membership), std::move(client)));
  }

  const Membership& membership() const noexcept { return membership_; }

  /// Sends Leave and closes. @returns whether the store acknowledged it by the deadline
  async::Task<bool> leave(Deadline deadline) {
    const bool acknowledged = co_await client_->leave(deadline);
    co_return acknowledged;
  }

  /// Reports a failure on this rank to the job; the latch gets the job's first cause within about a second.
  void report(const Cause& cause) { client_->report(cause); }

  /// For Store, which may outlive the session.
  const std::shared_ptr<StoreClient>& client() const noexcept { return client_; }

  JoinedJob(const JoinedJob&) = delete;
  JoinedJob& operator=(const JoinedJob&) = delete;
  ~JoinedJob() { client_->end("the session with the store has ended"); }

 private:
  JoinedJob(Membership membership, std::shared_ptr<StoreClient> client)
      : membership_(std::move(membership)), client_(std::move(client)) {}

  Membership membership_;
  std::shared_ptr<StoreClient> client_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
