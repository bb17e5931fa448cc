#pragma once
/// @file
/// Client session: heartbeats and reconnection of a rank's session with the store.

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/core/duration_text.hpp"
#include "dtrain/net/connect.hpp"
#include "dtrain/rendezvous/client/client_handshake.hpp"
#include "dtrain/rendezvous/session/resumable_session.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Lifetime: the loop outlives it. Threads: the loop's. Its handlers may end it.
class ClientSession {
 public:
  struct MessageHandlers {
    std::function<bool(ToRank&)> on_message;              ///< returns false for an unexpected message
    std::function<void(const std::string& how)> on_lost;  ///< the store is lost; `how` is a clause
  };

  ClientSession(async::EventLoop& loop, StoreAddress address, const Accepted& accepted,
                std::unique_ptr<FramedConnection> connection, MessageHandlers handlers)
      : loop_(loop),
        address_(std::move(address)),
        peer_(connection->tcp.peer()),
        accepted_(accepted),
        handlers_(std::move(handlers)),
        session_(std::make_shared<ResumableSession>(loop, SessionOptions{}, frame_handlers())) {
    connection->watch(std::chrono::milliseconds(accepted_.liveness_ms));
    static_cast<void>(session_->attach(std::move(connection), 0));  // a new session can always start at frame 0
    heartbeat_task_ = loop_.spawn(run_heartbeats());
  }
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;
  ~ClientSession() { end(); }

  /// @returns false if too many bytes wait to be sent
  [[nodiscard]] bool send(Frame frame) { return session_->send(std::move(frame)); }
  std::size_t waiting_bytes() const noexcept { return session_->waiting_bytes(); }

  /// Closes the connection; no handler is called any more.
  void end() noexcept {
    handlers_ = {};
    session_->close();
    heartbeat_task_.cancel();
    resume_task_.cancel();
    lookup_task_.cancel();
  }

 private:
  /// How long an address may take to answer at first. TCP repeats a lost SYN only after a second.
  static constexpr std::chrono::milliseconds first_connect_timeout{100};
  static constexpr std::chrono::milliseconds longest_connect_timeout{5000};

  ResumableSession::FrameHandlers frame_handlers() {
    ResumableSession::FrameHandlers handlers;
    handlers.on_frame = [this](std::span<const std::byte> frame) {
      std::optional<ToRank> message = decode_to_rank(frame);
      const std::function<bool(ToRank&)> on_message = handlers_.on_message;
      return message && (!on_message || on_message(*message));
    };
    handlers.on_end = [this](const std::string& how) {
      if (accepted_.reconnect_window_ms == 0) {
        report_lost(how);
      } else {
        resume_task_ = loop_.spawn(resume(how));
      }
    };
    return handlers;
  }

  void report_lost(const std::string& how) {
    const std::function<void(const std::string&)> on_lost = handlers_.on_lost;
    end();
    if (on_lost) {
      on_lost(how);
    }
  }

  /// Sends heartbeats, and ends the session if the store sends nothing for the liveness time. If this process itself
  /// was stopped meanwhile, the liveness time begins anew.
  async::Task<void> run_heartbeats() {
    const std::chrono::milliseconds every(std::max(accepted_.heartbeat_ms, 1U));
    const std::chrono::milliseconds liveness(std::max(accepted_.liveness_ms, 1U));
    for (;;) {
      const Deadline::Clock::time_point before = Deadline::Clock::now();
      co_await loop_.sleep_for(every);
      const Deadline::Clock::time_point now = Deadline::Clock::now();
      if (now - before > every + liveness / 2) {
        session_->reset_liveness_clock();
      } else if (session_->attached() && now - session_->last_received() > liveness) {
        report_lost("it has sent nothing for " + duration_text(liveness) +
                    " (it is stopped, or its host or the way to it is gone)");
        co_return;
      }
      session_->send_heartbeat();
    }
  }

  /// Replaces the broken connection within the reconnect window. It tries the last good address first, because
  /// resolving the name may take longer than the window; look_up_store() adds others. @param how the connection broke
  async::Task<void> resume(std::string how) {
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(accepted_.reconnect_window_ms));
    std::string reason;
    bool done = false;
    endpoints_.assign(1, peer_);
    connect_timeout_ = first_connect_timeout;
    last_error_.clear();
    try {
      while (!done && reason.empty() && !deadline.passed()) {
        done = co_await resume_once(reason, deadline);
        if (!done && reason.empty()) {
          if (connect_timeout_ == first_connect_timeout) {
            lookup_task_ = loop_.spawn(look_up_store(deadline), [](const std::exception_ptr&) {});
          }
          connect_timeout_ = std::min(2 * connect_timeout_, longest_connect_timeout);
          std::rotate(endpoints_.begin(), endpoints_.begin() + 1, endpoints_.end());
          co_await loop_.sleep_for(std::chrono::milliseconds(10));
        }
      }
    } catch (const std::exception& error) {
      reason = error.what();
    }
    lookup_task_.cancel();
    if (!done) {
      reason = reason.empty() ? last_error_ : reason;
      report_lost(how + (reason.empty() ? "" : "; going on with the session failed: " + reason));
    }
  }

  /// @param reason set if another try cannot succeed
  async::Task<bool> resume_once(std::string& reason, Deadline deadline) {
    async::Task<net::ConnectResult> attempt = net::connect_to_any(loop_, endpoints_, deadline, connect_timeout_);
    net::ConnectResult connected = co_await std::move(attempt);
    if (!connected.connection) {
      last_error_ = posix_error(connected.error, "connecting to " + to_string(endpoints_.front())).what();
      co_return false;
    }
    auto connection = std::make_unique<FramedConnection>(*std::move(connected.connection));
    const net::SocketAddress peer = connection->tcp.peer();
    HandshakeRequest request = Resume{accepted_.token, session_->received(), {}};
    HandshakeResult result =
        co_await handshake(*connection, address_, std::move(request), "going on with the session", deadline, deadline);
    if (const Refused* refused = std::get_if<Refused>(&result)) {
      reason = refused->sentence;
    } else if (const Failure* failure = std::get_if<Failure>(&result)) {
      reason = failure->cause.sentence();
      ToRank message = *failure;
      const std::function<bool(ToRank&)> on_message = handlers_.on_message;
      static_cast<void>(!on_message || on_message(message));
    }
    const HandshakeError* error = std::get_if<HandshakeError>(&result);
    last_error_ = error != nullptr ? error->reason : last_error_;
    const Accepted* accepted = std::get_if<Accepted>(&result);
    if (accepted == nullptr) {
      co_return false;
    }
    connection->watch(std::chrono::milliseconds(accepted_.liveness_ms));
    const bool attached = session_->attach(std::move(connection), accepted->received);
    peer_ = attached ? peer : peer_;
    reason = attached ? "" : "the store misses frames that it had acknowledged, or claims some that were never sent";
    co_return attached;
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
  net::SocketAddress peer_;  ///< store address of the session's last connection
  Accepted accepted_;
  MessageHandlers handlers_;
  std::shared_ptr<ResumableSession> session_;
  async::TaskHandle heartbeat_task_;
  std::vector<net::SocketAddress> endpoints_;    ///< addresses to try when resuming
  std::chrono::milliseconds connect_timeout_{};  ///< timeout of the next try
  std::string last_error_;                       ///< of the last try
  async::TaskHandle resume_task_;
  async::TaskHandle lookup_task_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
