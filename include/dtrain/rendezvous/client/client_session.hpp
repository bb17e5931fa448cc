#pragma once
/// @file
/// Client session: heartbeats and reconnection of a rank's session with the store.

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/connect.hpp"
#include "dtrain/net/socket_address.hpp"
#include "dtrain/rendezvous/client/client_handshake.hpp"
#include "dtrain/rendezvous/client/store_connector.hpp"
#include "dtrain/rendezvous/session/framed_connection.hpp"
#include "dtrain/rendezvous/session/resumable_session.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

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
