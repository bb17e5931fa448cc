#pragma once
/// @file
/// rendezvous::Session: a rank's membership in its job, from joining to leaving.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <unistd.h>

#include "dtrain/rendezvous/exchange.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Who wants to join.
struct JoinRequest {
  RankFacts facts;
  int world_size = 1;
  std::string job{};  ///< what the launcher calls the job
};

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
    std::unique_ptr<Link> link;
    const Accepted accepted = co_await enter(loop, address, request, *failure, doing, deadline, link);
    auto exchange =
        std::make_shared<Exchange>(loop, std::move(address), accepted, std::move(link), rank, std::move(failure));
    std::optional<Membership> membership = co_await exchange->welcome(deadline);
    if (!membership) {
      throw timed_out(doing, "the store did not say which ranks are missing");
    }
    if (membership->rank != rank || membership->world_size != request.world_size) {
      throw Error(Errc::protocol, doing + ": the store answered for another rank");
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

  static Error timed_out(const std::string& doing, const std::string& what) {
    return Error(Errc::timeout, doing + ": the deadline passed; " + what);
  }

  /// Knocks until the store lets this rank in. @param link that it did so on
  static async::Task<Accepted> enter(async::EventLoop& loop, const Address& address, const JoinRequest& request,
                                     FailureLatch& failure, const std::string& doing, Deadline deadline,
                                     std::unique_ptr<Link>& link) {
    std::chrono::milliseconds delay{10};
    for (;;) {
      net::Connection connection = co_await net::connect_with_backoff(loop, address.host, address.port, deadline);
      link = std::make_unique<Link>(std::move(connection));
      Knock call = make_join(request, deadline);
      KnockResult result = co_await knock(*link, address, std::move(call), doing, deadline);
      if (const Accepted* accepted = std::get_if<Accepted>(&result)) {
        co_return *accepted;
      }
      if (const Refused* refused = std::get_if<Refused>(&result)) {
        throw Error(Errc::refused, doing + " was refused: " + refused->sentence).with_rank(request.facts.rank);
      }
      if (const Failure* failed = std::get_if<Failure>(&result)) {
        failure.set(failed->cause);
        failure.throw_if_failed(request.facts.rank);
      }
      const NoAnswer* none = std::get_if<NoAnswer>(&result);
      if (none != nullptr && none->timed_out) {
        throw timed_out(doing, "the store took the connection but does not answer");
      }
      if (Deadline::Clock::now() + delay >= deadline.instant()) {
        throw timed_out(doing, "what listens there closed the connection without an answer (" +
                                   (none != nullptr ? none->reason : std::string()) +
                                   "); check that MASTER_ADDR and MASTER_PORT are those of this job's store");
      }
      co_await loop.sleep_for(delay);
      delay = std::min(2 * delay, std::chrono::milliseconds(1000));
    }
  }

  /// The store gives up a moment before this rank does, so that it has time to say which ranks are missing.
  static Join make_join(const JoinRequest& request, Deadline deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining());
    const auto patience = left - std::min(left / 10, std::chrono::milliseconds(1000));
    Join join;
    join.facts = request.facts;
    join.world_size = request.world_size;
    join.job = request.job;
    join.process = static_cast<std::int64_t>(::getpid());
    join.patience_ms = static_cast<std::uint64_t>(patience.count());
    return join;
  }

  Membership membership_;
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
