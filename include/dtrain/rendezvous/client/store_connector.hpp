#pragma once
/// @file
/// Store connector: connects to the job's store, with retries over one or several ports, and joins the job.

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
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/connect.hpp"
#include "dtrain/rendezvous/client/client_handshake.hpp"
#include "dtrain/rendezvous/client/slow_notice.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// A connection with a store that has accepted this rank.
struct ConnectedStore {
  StoreAddress address;  ///< with the port at which the store was found
  Accepted accepted;
  std::unique_ptr<FramedConnection> connection;
};

/// Tries to join until the store answers. If the store may be at several ports, it sends its Join to each in turn, and
/// skips a port without this job's store. Lifetime: the arguments outlive its task. Threads: the loop's.
class StoreConnector {
 public:
  /// @param join process and timeout are filled in
  StoreConnector(async::EventLoop& loop, StoreAddress address, Join join, FailureLatch& failure, std::string doing,
                 Deadline deadline)
      : loop_(&loop),
        address_(std::move(address)),
        join_(std::move(join)),
        failure_(&failure),
        doing_(std::move(doing)),
        deadline_(deadline) {}

  /// @throws Error (refused) with the store's sentence, or if one side does not know the other's secret; the job's
  /// first cause; Error (timeout); Error (protocol) if the peer is no store; and the errors of connecting
  async::Task<ConnectedStore> connect_and_join() {
    const std::chrono::microseconds delay_of_rank = connect_delay(join_.info.rank);
    if (delay_of_rank.count() > 0) {
      co_await loop_->sleep_until(earlier(deadline_, Deadline::after(delay_of_rank)));
    }
    SlowNotice notice(*loop_, doing_, "nothing has answered there yet");
    backoff_.on_failure = [&notice](const std::string& why) { notice.note(why); };
    const std::uint16_t first = address_.port;
    std::chrono::milliseconds delay = backoff_.first;
    bool is_again = false;
    for (std::uint16_t offset = 0;;) {
      address_.port = static_cast<std::uint16_t>(first + offset);
      has_sent_request_ = false;
      ConnectedStore connected;
      async::Task<bool> attempt = address_.ports == 1 ? try_once(connected) : try_port(connected);
      const bool in = co_await std::move(attempt);
      if (in) {
        connected.address = address_;
        co_return std::move(connected);
      }
      if (Deadline::Clock::now() + delay >= deadline_.instant()) {
        throw timed_out((other_store_refusal_.empty() ? last_error_ : other_store_refusal_) +
                        "; check that MASTER_ADDR and MASTER_PORT are those of this job's store");
      }
      notice.note(other_store_refusal_.empty() ? last_error_ : other_store_refusal_);
      is_again = has_sent_request_ && !is_again;
      if (is_again) {  // a store that took the Join waits for this rank within the reconnect window
        co_await loop_->sleep_for(backoff_.first);
        continue;
      }
      offset = static_cast<std::uint16_t>((offset + 1) % address_.ports);
      if (offset == 0) {
        co_await loop_->sleep_for(delay);
        delay = std::min(2 * delay, backoff_.longest);
      }
    }
  }

 private:
  /// How long one of several ports is tried before the next.
  static constexpr std::chrono::milliseconds port_timeout{500};
  /// How long a store at one of several ports may take to answer a Join: a slow one may have admitted the rank already.
  static constexpr std::chrono::milliseconds reply_timeout{5000};

  /// How long a rank waits before it connects. If more ranks connect at once than a listener's queue holds (4096 on
  /// most systems), connections are dropped. TCP repeats them only a second later. The delay makes the ranks of a large
  /// job connect about as fast as a store accepts them.
  static std::chrono::microseconds connect_delay(int rank) noexcept {
    constexpr int at_once = 2000;
    constexpr int longest = 100000;
    return std::chrono::microseconds(60) * (std::clamp(rank, at_once, longest) - at_once);
  }

  Error timed_out(const std::string& what) const {
    return Error(Errc::timeout, format_text("{}: the deadline passed; {}", {doing_, what}));
  }

  async::Task<bool> try_port(ConnectedStore& connected) {
    bool in = false;
    try {
      in = co_await try_once(connected);
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      const bool is_address = net::SocketAddress::from_numeric(address_.host, address_.port).has_value();
      const bool is_final = !is_other_job_ || (!is_address && !net::invalid_name_reason(address_.host).empty());
      if (failure_->failed() || (error.code() == make_error_code(Errc::refused) && is_final)) {
        throw;
      }
      last_error_ = error.what();
      if (error.code() == make_error_code(Errc::refused)) {
        other_store_refusal_ = last_error_;
      }
    }
    co_return in;
  }

  /// Connects and performs the handshake. @returns false, with `last_error_` set, if another try may succeed
  async::Task<bool> try_once(ConnectedStore& connected) {
    is_other_job_ = true;
    net::Connection connection = co_await connect();
    connected.connection = std::make_unique<FramedConnection>(std::move(connection));
    HandshakeRequest request = make_join();
    const bool is_only = address_.ports == 1;
    const Deadline deadline = is_only ? deadline_ : earlier(deadline_, Deadline::after(port_timeout));
    const Deadline reply_deadline = is_only ? deadline_ : earlier(deadline_, Deadline::after(reply_timeout));
    HandshakeResult result =
        co_await handshake(*connected.connection, address_, std::move(request), doing_, deadline, reply_deadline);
    if (const Refused* refused = std::get_if<Refused>(&result)) {
      is_other_job_ = refused->other_job;
      throw Error(Errc::refused, format_text("{} was refused: {}", {doing_, refused->sentence}))
          .with_rank(join_.info.rank);
    }
    if (const Failure* failed = std::get_if<Failure>(&result)) {
      failure_->set(failed->cause);
      failure_->throw_if_failed(join_.info.rank);
    }
    const HandshakeError* error = std::get_if<HandshakeError>(&result);
    if (error != nullptr && error->timed_out) {
      throw timed_out("the store took the connection but does not answer");
    }
    if (error != nullptr) {
      has_sent_request_ = error->request_sent;
      last_error_ = format_text("what listens there closed the connection without an answer ({})", {error->reason});
      co_return false;
    }
    connected.accepted = std::get<Accepted>(result);
    co_return true;
  }

  /// Tries a single port until it answers, and each of several ports once.
  async::Task<net::Connection> connect() {
    if (address_.ports == 1) {
      async::Task<net::Connection> patient =
          net::connect_with_backoff(*loop_, address_.host, address_.port, deadline_, backoff_);
      net::Connection connection = co_await std::move(patient);
      co_return std::move(connection);
    }
    async::Task<std::vector<net::SocketAddress>> lookup =
        net::resolve_with_backoff(*loop_, address_.host, address_.port, deadline_, backoff_);
    std::vector<net::SocketAddress> endpoints = co_await std::move(lookup);
    async::Task<net::ConnectResult> attempt =
        net::connect_to_any(*loop_, std::move(endpoints), deadline_, port_timeout);
    net::ConnectResult result = co_await std::move(attempt);
    if (!result.connection) {
      throw posix_error(result.error, "connecting to " + address_.text());
    }
    co_return *std::move(result.connection);
  }

  /// Its timeout is a tenth shorter than this rank's, at most 1 s, so that the store can still send the missing ranks.
  Join make_join() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_.remaining());
    Join join = join_;
    join.process = ::getpid();
    join.join_timeout_ms =
        static_cast<std::uint64_t>((left - std::min(left / 10, std::chrono::milliseconds(1000))).count());
    return join;
  }

  async::EventLoop* loop_;
  StoreAddress address_;
  Join join_;
  FailureLatch* failure_;
  std::string doing_;
  Deadline deadline_;
  std::string last_error_;
  std::string other_store_refusal_;  ///< of another job's store: explains more than last_error_
  net::Backoff backoff_;
  bool has_sent_request_ = false;  ///< the last try ended after it had sent its Join
  bool is_other_job_ = true;       ///< the last port is not known to be of this job's store
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
