#pragma once
/// @file
/// rendezvous::Session: a rank's membership in its job, from joining to leaving.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/rendezvous/entrance.hpp"
#include "dtrain/rendezvous/exchange.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// A rank's side of the rendezvous is built of, from below: Link (a connection with its frames), knock() and Entrance
/// (Hello, Challenge, Join, until the store accepts), Line (numbers frames and keeps what was not acknowledged),
/// Lifeline (attaches a new connection to a Line that lost its own), Exchange (pairs requests with answers), and this.
///
/// Lifetime: the loop outlives it. Destroying it without leave closes the connection, which the job takes for the loss
/// of this rank. Threads: the loop's, destruction included.
class Session {
 public:
  /// Connects to the store, with patience for one that is not there yet, and waits until all ranks have joined.
  /// @param failure gets the job's first cause, now and for the session's life
  /// @throws Error (refused) with the store's sentence, or where one side does not know the other's secret; the job's
  /// first cause; Error (timeout); and what connecting throws
  static async::Task<std::unique_ptr<Session>> join(async::EventLoop& loop, Address address, JoinRequest request,
                                                    std::shared_ptr<FailureLatch> failure, Deadline deadline) {
    const std::string store = address.text();
    const int rank = request.facts.rank;
    const std::string doing = "joining the job at " + store + " as " +
                              (address.role == Role::rank ? "rank " : "node ") + std::to_string(rank);
    Entrance entrance(loop, std::move(address), request, *failure, doing, deadline);
    Entered entered = co_await entrance.enter();
    const net::Endpoint own_end = entered.link->connection.local().unmapped();
    auto exchange = std::make_shared<Exchange>(loop, std::move(entered.address), entered.accepted,
                                               std::move(entered.link), rank, std::move(failure));
    std::optional<Membership> membership = co_await exchange->welcome(deadline);
    if (!membership) {
      throw Error(Errc::timeout, doing + ": the deadline passed; the store did not say which ranks are missing");
    }
    if (membership->rank != rank || membership->world_size != request.world_size) {
      throw Error(Errc::protocol, doing + ": the store answered for another rank");
    }
    if (!own_end.is_loopback()) {
      membership->route_address = own_end.host();
    }
    co_return std::unique_ptr<Session>(new Session(*std::move(membership), std::move(exchange)));
  }

  /// Who this rank is among the others.
  const Membership& membership() const noexcept { return membership_; }

  /// Says leave(ok) and closes. @returns whether the store acknowledged it by the deadline
  async::Task<bool> leave(Deadline deadline) {
    const bool acknowledged = co_await exchange_->leave(deadline);
    co_return acknowledged;
  }

  /// Tells the job of a failure on this rank; the latch gets the job's first cause within about a second.
  void report(const Cause& cause) { exchange_->report(cause); }

  /// For Store, which may outlive the session.
  const std::shared_ptr<Exchange>& exchange() const noexcept { return exchange_; }

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() { exchange_->end("the session with the store has ended"); }

 private:
  Session(Membership membership, std::shared_ptr<Exchange> exchange)
      : membership_(std::move(membership)), exchange_(std::move(exchange)) {}

  Membership membership_;
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
