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

#include "dtrain/net/connect.hpp"
#include "dtrain/rendezvous/exchange.hpp"
#include "dtrain/rendezvous/random.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Who wants to join.
struct JoinRequest {
  RankFacts facts;
  int world_size = 1;
};

/// Lifetime: the loop outlives it. Destroying it without leave closes the connection, which the job takes for the loss
/// of this rank. Threads: the loop's, destruction included.
class Session {
 public:
  /// Connects to the store, with patience for one that is not there yet, and waits until all ranks have joined.
  /// @param failure gets the job's first cause, now and for the session's life
  /// @throws Error (refused) with the store's sentence; the job's first cause; Error (timeout); and what connecting
  /// throws
  static async::Task<std::unique_ptr<Session>> join(async::EventLoop& loop, std::string host, std::uint16_t port,
                                                    JoinRequest request, std::shared_ptr<FailureLatch> failure,
                                                    Deadline deadline) {
    const std::string store = host + ":" + std::to_string(port);
    const std::string doing = "joining the job at " + store + " as rank " + std::to_string(request.facts.rank);
    std::chrono::milliseconds delay{10};
    for (;;) {
      net::Connection connection = co_await net::connect_with_backoff(loop, host, port, deadline);
      auto link = std::make_unique<Link>(std::move(connection));
      Attempt attempt{doing, request, *failure, deadline};
      co_await attempt.run(*link);
      if (attempt.welcomed) {
        co_return std::unique_ptr<Session>(
            new Session(loop, std::move(link), *std::move(attempt.welcomed), store, std::move(failure)));
      }
      if (Deadline::Clock::now() + delay >= deadline.instant()) {
        throw timed_out(doing, "what listens there closed the connection without an answer (" + attempt.reason +
                                   "); check that MASTER_ADDR and MASTER_PORT are those of this job's store");
      }
      co_await loop.sleep_for(delay);
      delay = std::min(2 * delay, std::chrono::milliseconds(1000));
    }
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
  Session(async::EventLoop& loop, std::unique_ptr<Link> link, Membership membership, const std::string& store,
          std::shared_ptr<FailureLatch> failure)
      : membership_(std::move(membership)),
        exchange_(std::make_shared<Exchange>(loop, std::move(link), membership_.rank, store, std::move(failure))) {}

  static Error timed_out(const std::string& doing, const std::string& what) {
    return Error(Errc::timeout, doing + ": the deadline passed; " + what);
  }

  /// One connection's handshake.
  struct Attempt {
    const std::string& doing;
    const JoinRequest& request;
    FailureLatch& failure;
    Deadline deadline;
    std::optional<Membership> welcomed{};
    std::string reason{};  ///< why the connection ended before the store had accepted this rank

    /// Sets `welcomed`, or `reason` where it is worth another try. @throws what join throws
    async::Task<void> run(Link& link) {
      const Frame hello = encode(make_hello());
      if (!link.writer.queue(hello)) {
        throw Error(Errc::limit, doing + ": the hello is too long");
      }
      const net::IoResult sent = co_await link.writer.flush(deadline);
      if (!sent.ok()) {
        reason = sent.reason();
        co_return;
      }
      bool accepted = false;
      while (!welcomed) {
        const net::FrameResult frame = co_await link.reader.read_frame(deadline);
        if (frame.status == net::FrameStatus::timed_out) {
          throw timed_out(doing, accepted ? "the store did not say which ranks are missing"
                                          : "the store accepted the connection but does not answer");
        }
        if (!frame.ok() && !accepted) {
          reason = frame.reason;
          co_return;
        }
        if (!frame.ok()) {
          give_up("its store went away while the ranks were joining: rank 0 or its launcher ended (" + frame.reason +
                  ")");
        }
        std::optional<ToRank> message = decode_to_rank(frame.payload);
        if (!message) {
          throw Error(Errc::protocol,
                      doing + ": what listens there is no store of dtrain's; check MASTER_ADDR and " + "MASTER_PORT");
        }
        accepted = hear(*message) || accepted;
      }
    }

    /// Whether it was Accepted.
    bool hear(ToRank& message) {
      if (const Refused* refused = std::get_if<Refused>(&message)) {
        throw Error(Errc::refused, doing + " was refused: " + refused->sentence).with_rank(request.facts.rank);
      }
      if (const Failure* failed = std::get_if<Failure>(&message)) {
        failure.set(failed->cause);
        failure.throw_if_failed(request.facts.rank);
      }
      if (Welcome* welcome = std::get_if<Welcome>(&message)) {
        if (welcome->membership.rank != request.facts.rank || welcome->membership.world_size != request.world_size) {
          throw Error(Errc::protocol, doing + ": the store answered for another rank");
        }
        welcomed = std::move(welcome->membership);
      }
      const Accepted* accepted = std::get_if<Accepted>(&message);
      if (accepted != nullptr && accepted->nonce != nonce) {
        throw Error(Errc::protocol, doing + ": the store answered another process");
      }
      return accepted != nullptr;
    }

    [[noreturn]] void give_up(const std::string& text) {
      failure.set(Cause{CauseKind::lost, -1, {}, text});
      failure.throw_if_failed(request.facts.rank);
      throw Error(Errc::closed, doing + ": " + text);
    }

    /// The store gives up a moment before this rank does, so that it has time to say which ranks are missing.
    Hello make_hello() {
      nonce = random_nonce();
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining());
      const auto patience = left - std::min(left / 10, std::chrono::milliseconds(1000));
      Hello hello;
      hello.version = version_text();
      hello.nonce = nonce;
      hello.facts = request.facts;
      hello.world_size = request.world_size;
      hello.process = static_cast<std::int64_t>(::getpid());
      hello.patience_ms = static_cast<std::uint64_t>(patience.count());
      return hello;
    }

    Nonce nonce{};
  };

  Membership membership_;
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
