#pragma once
/// @file
/// StoreConnector of a StoreClient: finds a job's store at one or several ports, and joins.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/connection.hpp"
#include "dtrain/net/socket_address.hpp"
#include "dtrain/rendezvous/client/client_handshake.hpp"
#include "dtrain/rendezvous/client/slow_notice.hpp"
#include "dtrain/rendezvous/session/session.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// A session with a store that has accepted this rank; it has not been started.
struct ConnectedStore {
  StoreAddress address;  ///< the store's address, with the port at which it was found
  Accepted accepted;
  std::shared_ptr<Session> session;
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
        deadline_(deadline),
        first_port_(address_.port) {
    if (address_.ports > 1) {
      backoff_.attempt_timeout = port_timeout;
      backoff_.connects_once = true;
    }
  }

  /// @throws Error (refused) with the store's sentence, or if one side does not know the other's secret; the job's
  /// first cause, also if it comes from elsewhere; Error (timeout); Error (protocol) if the peer is no store; and the
  /// errors of connecting
  async::Task<ConnectedStore> connect_and_join() {
    const std::chrono::microseconds delay_of_rank = connect_delay(join_.info.rank);
    if (delay_of_rank.count() > 0) {
      co_await loop_->sleep_until(earlier(deadline_, Deadline::after(delay_of_rank)));
    }
    notice_.emplace(*loop_, doing_, "nothing has answered there yet");
    backoff_.on_retry = [this](std::string why) { note(std::move(why)); };
    ConnectedStore connected;
    for (;;) {
      has_sent_request_ = false;
      is_other_job_ = true;
      try {
        async::Task<net::Connection> connecting =
            net::connect_with_backoff(*loop_, address_.host, address_.port, deadline_, backoff_);
        net::Connection connection = co_await std::move(connecting);
        notice_->note("what listens there took the connection and has not answered yet");
        silent_for_long_ = Deadline::after(telling_silence);
        connected.session = std::make_shared<Session>(std::move(connection));
        async::Task<HandshakeResult> shaking =
            handshake(*connected.session, address_, encode(make_join()), doing_, earlier_of_several(port_timeout),
                      earlier_of_several(reply_timeout));
        const HandshakeResult result = co_await std::move(shaking);
        if (take(result, connected)) {
          notice_.reset();
          co_return std::move(connected);
        }
      } catch (const Error& error) {
        keep_error(error, connected.session != nullptr);
      }
      connected.session.reset();
      const std::chrono::milliseconds delay = choose_next_try();
      note(reason());
      co_await loop_->sleep_for(delay);
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

  Deadline earlier_of_several(std::chrono::milliseconds timeout) const {
    return address_.ports == 1 ? deadline_ : earlier(deadline_, Deadline::after(timeout));
  }

  /// A try has failed. @throws the job's first cause, if it is known: this process may serve the store
  void note(std::string why) {
    failure_->throw_if_failed(join_.info.rank);
    notice_->note(std::move(why));
  }

  /// Why the last tries failed. The rejection by another job's store explains more than what follows it.
  const std::string& reason() const noexcept {
    return other_store_refusal_.empty() ? last_error_ : other_store_refusal_;
  }

  /// @returns whether the store has accepted this rank; false, with `last_error_` set, if another try may succeed
  bool take(const HandshakeResult& result, ConnectedStore& connected) {
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
    if (error != nullptr) {
      has_sent_request_ = error->request_sent;
      if (error->timed_out) {
        const bool is_cut_short = address_.ports == 1 && !silent_for_long_.passed() && !last_error_.empty();
        throw late_error(doing_, is_cut_short ? last_error_ : error->reason);
      }
      last_error_ = error->reason;
      return false;
    }
    connected.accepted = std::get<Accepted>(result);
    connected.address = address_;
    return true;
  }

  /// Throws the error in handling again, unless another of several ports may have this job's store.
  void keep_error(const Error& error, bool has_connected) {
    const bool is_address = net::SocketAddress::from_numeric(address_.host, address_.port).has_value();
    const bool is_final = !is_other_job_ || (!is_address && !net::invalid_name_reason(address_.host).empty());
    const bool was_refused = error.code() == make_error_code(Errc::refused);
    if (address_.ports == 1 && !has_connected && deadline_.passed() && !last_error_.empty()) {
      throw late_error(doing_, reason());  // it was too late for another try, which explains less
    }
    if (address_.ports == 1 || failure_->failed() || (was_refused && is_final)) {
      throw;
    }
    last_error_ = error.what();
    if (was_refused) {
      other_store_refusal_ = last_error_;
    }
  }

  /// @returns how long to wait before the next try @throws Error (timeout) if it is too late for one
  std::chrono::milliseconds choose_next_try() {
    if (Deadline::Clock::now() + delay_ >= deadline_.instant()) {
      throw late_error(doing_, reason());
    }
    is_again_ = has_sent_request_ && !is_again_;
    if (is_again_) {  // a store that took the Join waits for this rank, Limits::rejoin
      return backoff_.first;
    }
    offset_ = static_cast<std::uint16_t>((offset_ + 1) % address_.ports);
    address_.port = static_cast<std::uint16_t>(first_port_ + offset_);
    return offset_ != 0 ? std::chrono::milliseconds(0) : std::exchange(delay_, std::min(2 * delay_, backoff_.longest));
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
  std::uint16_t first_port_;
  std::uint16_t offset_ = 0;                        ///< offset of the port that is tried
  Deadline silent_for_long_ = Deadline::after({});  ///< the time from which the silence of the last try tells something
  std::string last_error_;
  std::string other_store_refusal_;
  std::optional<SlowNotice> notice_;
  net::Backoff backoff_;
  std::chrono::milliseconds delay_ = backoff_.first;  ///< the pause after all ports were tried
  bool is_again_ = false;                             ///< the port is tried a second time
  bool has_sent_request_ = false;                     ///< the last try ended after it had sent its Join
  bool is_other_job_ = true;                          ///< the last port is not known to be of this job's store
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
