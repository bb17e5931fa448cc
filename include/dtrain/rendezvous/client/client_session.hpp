#pragma once
/// @file
/// Client session: a rank's session with the store. StoreConnector connects to it, with retries over one or several
/// ports, and joins the job; ClientSession sends heartbeats and reconnects.

#include <unistd.h>

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

#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/connection.hpp"
#include "dtrain/net/socket_address.hpp"
#include "dtrain/rendezvous/client/client_handshake.hpp"
#include "dtrain/rendezvous/client/slow_notice.hpp"
#include "dtrain/rendezvous/session/framed_connection.hpp"
#include "dtrain/rendezvous/session/resumable_session.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// A connection with a store that has accepted this rank.
struct ConnectedStore {
  StoreAddress address;  ///< with the port at which the store was found
  Accepted accepted;
  std::unique_ptr<FramedConnection> connection;
};

/// Tries to join until the store answers. If the store may be at several ports, it sends its Join to each in turn, and
/// skips a port without this job's store. Lifetime: the arguments outlive its task. Threads: the loop's.
class StoreConnector final : private net::RetryObserver {
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
    backoff_.observer = this;
    ConnectedStore connected;
    for (;;) {
      has_sent_request_ = false;
      is_other_job_ = true;
      try {
        async::Task<net::Connection> connecting =
            net::connect_with_backoff(*loop_, address_.host, address_.port, deadline_, backoff_);
        net::Connection connection = co_await std::move(connecting);
        connected.connection = std::make_unique<FramedConnection>(std::move(connection));
        const HandshakeRequest request = make_join();
        const HandshakeResult result =
            co_await handshake(*connected.connection, address_, request, doing_, earlier_of_several(port_timeout),
                               earlier_of_several(reply_timeout));
        if (take(result, connected)) {
          notice_.reset();
          co_return std::move(connected);
        }
      } catch (const Error& error) {
        keep_error(error);
      }
      connected.connection.reset();
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
  void note(std::string why) override {
    failure_->throw_if_failed(join_.info.rank);
    notice_->note(std::move(why));
  }

  /// Why the last tries failed. The refusal by another job's store explains more than what follows it.
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
    if (error != nullptr && error->timed_out) {
      throw_error(Errc::timeout, "{}: the deadline passed; the store took the connection but does not answer",
                  {doing_});
    }
    if (error != nullptr) {
      has_sent_request_ = error->request_sent;
      last_error_ = format_text("what listens there closed the connection without an answer ({})", {error->reason});
      return false;
    }
    connected.accepted = std::get<Accepted>(result);
    connected.address = address_;
    return true;
  }

  /// Throws the error in handling again, unless another of several ports may have this job's store.
  void keep_error(const Error& error) {
    const bool is_address = net::SocketAddress::from_numeric(address_.host, address_.port).has_value();
    const bool is_final = !is_other_job_ || (!is_address && !net::invalid_name_reason(address_.host).empty());
    const bool was_refused = error.code() == make_error_code(Errc::refused);
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
      throw_error(Errc::timeout,
                  "{}: the deadline passed; {}; check that MASTER_ADDR and MASTER_PORT are those of this job's store",
                  {doing_, reason()});
    }
    is_again_ = has_sent_request_ && !is_again_;
    if (is_again_) {  // a store that took the Join waits for this rank within the reconnect window
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
  std::uint16_t offset_ = 0;  ///< of the port that is tried
  std::string last_error_;
  std::string other_store_refusal_;
  std::optional<SlowNotice> notice_;
  net::Backoff backoff_;
  std::chrono::milliseconds delay_ = backoff_.first;  ///< after all ports were tried
  bool is_again_ = false;                             ///< the port is tried a second time
  bool has_sent_request_ = false;                     ///< the last try ended after it had sent its Join
  bool is_other_job_ = true;                          ///< the last port is not known to be of this job's store
};

/// Base of a StoreClient, which receives the frames. Lifetime: the loop outlives it. Threads: the loop's.
class ClientSession : public SessionHandler {
 public:
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

 protected:
  /// The tasks begin in the loop's next turn, when the derived object exists.
  ClientSession(async::EventLoop& loop, ConnectedStore store)
      : loop_(loop),
        address_(std::move(store.address)),
        local_(store.connection->tcp.local()),
        peer_(store.connection->tcp.peer()),
        accepted_(store.accepted),
        session_(std::make_shared<ResumableSession>(loop, SessionOptions{}, *this)) {
    store.connection->watch(std::chrono::milliseconds(accepted_.liveness_ms));
    static_cast<void>(session_->attach(std::move(store.connection), 0));  // a new session can always start at frame 0
    heartbeat_task_ = loop_.spawn(run_heartbeats());
  }
  ~ClientSession() { close(); }

  /// The job has failed, as the store says instead of going on with the session.
  virtual void on_failure(const Cause& cause) = 0;
  /// The store is lost, and the session closed. @param how a clause @param is_silent its connection had not ended
  virtual void on_lost(const std::string& how, bool is_silent) = 0;

  /// Closes the connection; no virtual function is called any more.
  DTRAIN_NOT_INLINED void close() noexcept {
    session_->close();
    heartbeat_task_.cancel();
    resume_task_.cancel();
    lookup_task_.cancel();
  }

  async::EventLoop& loop() const noexcept { return loop_; }
  const StoreAddress& address() const noexcept { return address_; }
  const net::SocketAddress& local() const noexcept { return local_; }
  ResumableSession& session() const noexcept { return *session_; }

 private:
  /// How long an address may take to answer at first. TCP repeats a lost SYN only after a second.
  static constexpr std::chrono::milliseconds first_connect_timeout{100};
  static constexpr std::chrono::milliseconds longest_connect_timeout{5000};

  void on_disconnected(const std::string& how) override {
    if (accepted_.reconnect_window_ms == 0) {
      lose(how);
    } else {
      resume_task_ = loop_.spawn(resume(how));
    }
  }

  void lose(const std::string& how) {
    close();
    on_lost(how, false);
  }

  /// Sends heartbeats, and ends the session if the store sends nothing for the liveness time, in which the time that
  /// this process itself was stopped or got no processor does not count.
  async::Task<void> run_heartbeats() {
    const std::chrono::milliseconds every(std::max(accepted_.heartbeat_ms, 1U));
    const std::chrono::milliseconds liveness(std::max(accepted_.liveness_ms, 1U));
    for (;;) {
      const Deadline::Clock::time_point before = Deadline::Clock::now();
      co_await loop_.sleep_for(every);
      const Deadline::Clock::time_point now = Deadline::Clock::now();
      session_->excuse_silence(now - before - every);
      if (session_->attached() && now - session_->last_received() > liveness) {
        close();
        on_lost(silence_text(liveness), true);
        co_return;
      }
      session_->send_heartbeat();
    }
  }

  /// Replaces the broken connection within the reconnect window. It tries the last good address first, because
  /// resolving the name may take longer than the window; look_up_store() adds others. @param how the connection broke
  async::Task<void> resume(std::string how) {
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(accepted_.reconnect_window_ms));
    const HandshakeRequest request = Resume{accepted_.token, session_->received(), {}};
    bool is_over = false;
    endpoints_.assign(1, peer_);
    connect_timeout_ = first_connect_timeout;
    last_error_.clear();
    try {
      while (!is_over && !deadline.passed()) {
        async::Task<net::ConnectResult> attempt = net::connect_to_any(loop_, endpoints_, deadline, connect_timeout_);
        net::ConnectResult connected = co_await std::move(attempt);
        if (connected.connection) {
          auto connection = std::make_unique<FramedConnection>(*std::move(connected.connection));
          const HandshakeResult result =
              co_await handshake(*connection, address_, request, "going on with the session", deadline, deadline);
          is_over = finish_resume(result, std::move(connection));
        } else {
          last_error_ =
              posix_error(connected.error, format_text("connecting to {}", {to_string(endpoints_.front())})).what();
        }
        if (!is_over) {
          prepare_next_attempt(deadline);
          co_await loop_.sleep_for(std::chrono::milliseconds(10));
        }
      }
    } catch (const std::exception& error) {
      last_error_ = error.what();
    }
    lookup_task_.cancel();
    if (!session_->attached()) {
      lose(how + (last_error_.empty() ? "" : format_text("; going on with the session failed: {}", {last_error_})));
    }
  }

  void prepare_next_attempt(Deadline deadline) {
    if (connect_timeout_ == first_connect_timeout) {
      lookup_task_ = loop_.spawn(look_up_store(deadline), [](const std::exception_ptr&) {});
    }
    connect_timeout_ = std::min(2 * connect_timeout_, longest_connect_timeout);
    std::rotate(endpoints_.begin(), endpoints_.begin() + 1, endpoints_.end());
  }

  /// Attaches the connection if the store has accepted it; else sets `last_error_`.
  /// @returns whether no other attempt is to follow
  bool finish_resume(const HandshakeResult& result, std::unique_ptr<FramedConnection> connection) {
    if (const HandshakeError* error = std::get_if<HandshakeError>(&result)) {
      last_error_ = error->reason;
      return false;
    }
    if (const Refused* refused = std::get_if<Refused>(&result)) {
      last_error_ = refused->sentence;
    } else if (const Failure* failure = std::get_if<Failure>(&result)) {
      last_error_ = failure->cause.sentence();
      on_failure(failure->cause);
    } else {
      const net::SocketAddress peer = connection->tcp.peer();
      connection->watch(std::chrono::milliseconds(accepted_.liveness_ms));
      if (session_->attach(std::move(connection), std::get<Accepted>(result).received)) {
        peer_ = peer;
      } else {
        last_error_ = "the store misses frames that it had acknowledged, or claims some that were never sent";
      }
    }
    return true;
  }

  /// Adds the addresses that the store's name resolves to now to `endpoints_`.
  async::Task<void> look_up_store(Deadline deadline) {
    async::Task<net::Resolution> lookup = net::resolve(loop_, address_.host, address_.port, deadline);
    const net::Resolution found = co_await std::move(lookup);
    for (const net::SocketAddress& each : found.addresses) {
      if (each != peer_) {
        endpoints_.push_back(each);
      }
    }
  }

  async::EventLoop& loop_;
  StoreAddress address_;
  net::SocketAddress local_;  ///< this rank's end of the session's first connection
  net::SocketAddress peer_;   ///< store address of the session's last connection
  Accepted accepted_;
  std::shared_ptr<ResumableSession> session_;
  async::TaskHandle heartbeat_task_;
  std::vector<net::SocketAddress> endpoints_;    ///< addresses to try when resuming
  std::chrono::milliseconds connect_timeout_{};  ///< timeout of the next try
  std::string last_error_;                       ///< of the last try
  async::TaskHandle resume_task_;
  async::TaskHandle lookup_task_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
