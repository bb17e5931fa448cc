#pragma once
/// @file
/// How a rank finds the store of its job and is let in.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <unistd.h>

#include "dtrain/core/failure_latch.hpp"
#include "dtrain/net/connect.hpp"
#include "dtrain/rendezvous/knock.hpp"
#include "dtrain/rendezvous/slow_notice.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Who wants to join.
struct JoinRequest {
  RankFacts facts;
  int world_size = 1;
  std::string job{};         ///< the job's name; empty where it has none
  Origin origin{};           ///< what else tells the job from others
  bool opens_store = false;  ///< the job's store is this rank's to open

  /// @param patience how long this rank waits for the others
  Join message(std::chrono::milliseconds patience) const {
    Join join;
    join.facts = facts;
    join.world_size = world_size;
    join.job = job;
    join.origin = origin;
    join.opens_store = opens_store;
    join.process = static_cast<std::int64_t>(::getpid());
    join.patience_ms = static_cast<std::uint64_t>(patience.count());
    return join;
  }
};

/// A store that has let this rank in.
struct Entered {
  Address address;  ///< with the port that it was found at
  Accepted accepted;
  std::unique_ptr<Link> link;
};

/// Tries until the store is there. Where it may be at one of several ports, what is found at one is asked whether it is
/// this job's; who does not answer as a store of this job is passed over.
/// Lifetime: what it is given outlives its task. Threads: the loop's.
class Entrance {
 public:
  Entrance(async::EventLoop& loop, Address address, const JoinRequest& request, FailureLatch& failure,
           std::string doing, Deadline deadline)
      : loop_(&loop),
        address_(std::move(address)),
        request_(&request),
        failure_(&failure),
        doing_(std::move(doing)),
        deadline_(deadline) {}

  /// @throws Error (refused) with the store's sentence, or where one side does not know the other's secret; the job's
  /// first cause; Error (timeout); Error (protocol) for what is no store; and what connecting throws
  async::Task<Entered> enter() {
    const std::chrono::microseconds turn = turn_of(request_->facts.rank);
    if (turn.count() > 0) {
      co_await loop_->sleep_until(earlier(deadline_, Deadline::after(turn)));
    }
    SlowNotice notice(*loop_, doing_, "nothing has answered there yet");
    backoff_.on_failure = [&notice](const std::string& why) { notice.note(why); };
    const std::uint16_t first = address_.port;
    std::chrono::milliseconds delay = backoff_.first;
    bool is_again = false;
    for (std::uint16_t place = 0;;) {
      address_.port = static_cast<std::uint16_t>(first + place);
      has_called_ = false;
      Entered entered;
      async::Task<bool> attempt = address_.ports == 1 ? try_once(entered) : try_place(entered);
      const bool in = co_await std::move(attempt);
      if (in) {
        entered.address = address_;
        co_return std::move(entered);
      }
      if (Deadline::Clock::now() + delay >= deadline_.instant()) {
        throw timed_out((refused_by_.empty() ? in_vain_ : refused_by_) +
                        "; check that MASTER_ADDR and MASTER_PORT are those of this job's store");
      }
      notice.note(refused_by_.empty() ? in_vain_ : refused_by_);
      is_again = has_called_ && !is_again;
      if (is_again) {  // a store that took the Join waits for this rank, for its grace
        co_await loop_->sleep_for(backoff_.first);
        continue;
      }
      place = static_cast<std::uint16_t>((place + 1) % address_.ports);
      if (place == 0) {
        co_await loop_->sleep_for(delay);
        delay = std::min(2 * delay, backoff_.longest);
      }
    }
  }

 private:
  /// How long one of several ports is tried before the next.
  static constexpr std::chrono::milliseconds one_place{500};
  /// And how long a store there may take to answer a Join: one that is slow has taken the rank in meanwhile.
  static constexpr std::chrono::milliseconds settling{5000};

  /// How long a rank waits before it calls. More calls at once than a listener's queue holds (4096 on most systems) are
  /// dropped, and TCP repeats them only a second later; so the many ranks of a large job come about as fast as a store
  /// takes them.
  static std::chrono::microseconds turn_of(int rank) noexcept {
    constexpr int at_once = 2000;
    constexpr int longest = 100000;
    return std::chrono::microseconds(60) * (std::clamp(rank, at_once, longest) - at_once);
  }

  Error timed_out(const std::string& what) const {
    return Error(Errc::timeout, doing_ + ": the deadline passed; " + what);
  }

  async::Task<bool> try_place(Entered& entered) {
    bool in = false;
    try {
      in = co_await try_once(entered);
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      const bool is_address = net::Endpoint::from_numeric(address_.host, address_.port).has_value();
      const bool is_final = !is_elsewhere_ || (!is_address && !net::why_no_name(address_.host).empty());
      if (failure_->failed() || (error.code() == make_error_code(Errc::refused) && is_final)) {
        throw;
      }
      in_vain_ = error.what();
      if (error.code() == make_error_code(Errc::refused)) {
        refused_by_ = in_vain_;
      }
    }
    co_return in;
  }

  /// Connects and knocks. False, with `in_vain_` set, where it is worth another try.
  async::Task<bool> try_once(Entered& entered) {
    is_elsewhere_ = true;
    net::Connection connection = co_await connect();
    entered.link = std::make_unique<Link>(std::move(connection));
    Knock call = make_join();
    const bool is_only = address_.ports == 1;
    const Deadline deadline = is_only ? deadline_ : earlier(deadline_, Deadline::after(one_place));
    const Deadline settled = is_only ? deadline_ : earlier(deadline_, Deadline::after(settling));
    KnockResult result = co_await knock(*entered.link, address_, std::move(call), doing_, deadline, settled);
    if (const Refused* refused = std::get_if<Refused>(&result)) {
      is_elsewhere_ = refused->other_job;
      throw Error(Errc::refused, doing_ + " was refused: " + refused->sentence).with_rank(request_->facts.rank);
    }
    if (const Failure* failed = std::get_if<Failure>(&result)) {
      failure_->set(failed->cause);
      failure_->throw_if_failed(request_->facts.rank);
    }
    const NoAnswer* none = std::get_if<NoAnswer>(&result);
    if (none != nullptr && none->timed_out) {
      throw timed_out("the store took the connection but does not answer");
    }
    if (none != nullptr) {
      has_called_ = none->called;
      in_vain_ = "what listens there closed the connection without an answer (" + none->reason + ")";
      co_return false;
    }
    entered.accepted = std::get<Accepted>(result);
    co_return true;
  }

  /// The only place is tried until it answers; of several each once, since there is a next one.
  async::Task<net::Connection> connect() {
    if (address_.ports == 1) {
      async::Task<net::Connection> patient =
          net::connect_with_backoff(*loop_, address_.host, address_.port, deadline_, backoff_);
      net::Connection connection = co_await std::move(patient);
      co_return std::move(connection);
    }
    async::Task<std::vector<net::Endpoint>> lookup =
        net::resolve_with_backoff(*loop_, address_.host, address_.port, deadline_, backoff_);
    std::vector<net::Endpoint> endpoints = co_await std::move(lookup);
    async::Task<net::ConnectResult> attempt =
        net::connect_to_one_of(*loop_, std::move(endpoints), deadline_, one_place);
    net::ConnectResult result = co_await std::move(attempt);
    if (!result.connection) {
      throw posix_error(result.error, "connecting to " + address_.text());
    }
    co_return *std::move(result.connection);
  }

  /// The store gives up a moment before this rank does, so that it has time to say which ranks are missing.
  Join make_join() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_.remaining());
    return request_->message(left - std::min(left / 10, std::chrono::milliseconds(1000)));
  }

  async::EventLoop* loop_;
  Address address_;
  const JoinRequest* request_;
  FailureLatch* failure_;
  std::string doing_;
  Deadline deadline_;
  std::string in_vain_;
  std::string refused_by_;  ///< what a store said that is another job's: the last of several ports tells less
  net::Backoff backoff_;
  bool has_called_ = false;   ///< the last try ended after its Join was sent
  bool is_elsewhere_ = true;  ///< what was found at the last place is not this job's store
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
