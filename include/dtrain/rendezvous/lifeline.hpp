#pragma once
/// @file
/// rendezvous::Lifeline: a rank's side of its session: beats, and is made good after a break.

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

#include "dtrain/core/seconds_text.hpp"
#include "dtrain/net/connect.hpp"
#include "dtrain/rendezvous/knock.hpp"
#include "dtrain/rendezvous/line.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Lifetime: the loop outlives it. Threads: the loop's. Its handlers may end it.
class Lifeline {
 public:
  struct Handlers {
    std::function<bool(ToRank&)> on_message;              ///< false where it is out of place
    std::function<void(const std::string& how)> on_lost;  ///< the store is gone for good; a clause
  };

  Lifeline(async::EventLoop& loop, Address address, const Accepted& accepted, std::unique_ptr<Link> link,
           Handlers handlers)
      : loop_(loop),
        address_(std::move(address)),
        peer_(link->connection.peer()),
        accepted_(accepted),
        handlers_(std::move(handlers)),
        line_(std::make_shared<Line>(loop, LineOptions{}, line_handlers())) {
    link->watch(std::chrono::milliseconds(accepted_.liveness_ms));
    static_cast<void>(line_->attach(std::move(link), 0));  // a new line can go on from its beginning
    beating_ = loop_.spawn(beat());
  }
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  ~Lifeline() { end(); }

  /// False where too much waits to be sent.
  [[nodiscard]] bool send(Frame frame) { return line_->send(std::move(frame)); }
  std::size_t waiting_bytes() const noexcept { return line_->waiting_bytes(); }

  /// Closes the connection; no handler is called any more.
  void end() noexcept {
    handlers_ = {};
    line_->close();
    beating_.cancel();
    resuming_.cancel();
    looking_.cancel();
  }

 private:
  /// How long an address may take to answer at first: TCP itself would repeat a lost SYN only after a second.
  static constexpr std::chrono::milliseconds first_try{100};
  static constexpr std::chrono::milliseconds longest_try{5000};

  Line::Handlers line_handlers() {
    Line::Handlers handlers;
    handlers.on_frame = [this](std::span<const std::byte> frame) {
      std::optional<ToRank> message = decode_to_rank(frame);
      const std::function<bool(ToRank&)> on_message = handlers_.on_message;
      return message && (!on_message || on_message(*message));
    };
    handlers.on_end = [this](const std::string& how) {
      if (accepted_.grace_ms == 0) {
        lose(how);
      } else {
        resuming_ = loop_.spawn(resume(how));
      }
    };
    return handlers;
  }

  void lose(const std::string& how) {
    const std::function<void(const std::string&)> on_lost = handlers_.on_lost;
    end();
    if (on_lost) {
      on_lost(how);
    }
  }

  /// Where this process itself was stopped meanwhile, the store is not blamed for it.
  async::Task<void> beat() {
    const std::chrono::milliseconds every(std::max(accepted_.heartbeat_ms, 1U));
    const std::chrono::milliseconds liveness(std::max(accepted_.liveness_ms, 1U));
    for (;;) {
      const Deadline::Clock::time_point before = Deadline::Clock::now();
      co_await loop_.sleep_for(every);
      const Deadline::Clock::time_point now = Deadline::Clock::now();
      if (now - before > every + liveness / 2) {
        line_->forgive_silence();
      } else if (line_->attached() && now - line_->last_heard() > liveness) {
        lose("it has said nothing for " + seconds_text(liveness) +
             " (it is stopped, or its host or the way to it is gone)");
        co_return;
      }
      line_->beat();
    }
  }

  /// Makes the broken connection good within the grace: at the address that was good, since asking for a name may take
  /// longer than that; where the name means another one by now, also there. @param how it broke
  async::Task<void> resume(std::string how) {
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(accepted_.grace_ms));
    std::string reason;
    bool done = false;
    endpoints_.assign(1, peer_);
    one_try_ = first_try;
    in_vain_.clear();
    try {
      while (!done && reason.empty() && !deadline.passed()) {
        done = co_await resume_once(reason, deadline);
        if (!done && reason.empty()) {
          if (one_try_ == first_try) {
            looking_ = loop_.spawn(look_up(deadline), [](const std::exception_ptr&) {});
          }
          one_try_ = std::min(2 * one_try_, longest_try);
          std::rotate(endpoints_.begin(), endpoints_.begin() + 1, endpoints_.end());
          co_await loop_.sleep_for(std::chrono::milliseconds(10));
        }
      }
    } catch (const std::exception& error) {
      reason = error.what();
    }
    looking_.cancel();
    if (!done) {
      reason = reason.empty() ? in_vain_ : reason;
      lose(how + (reason.empty() ? "" : "; going on with the session failed: " + reason));
    }
  }

  /// @param reason set where trying again is in vain
  async::Task<bool> resume_once(std::string& reason, Deadline deadline) {
    async::Task<net::ConnectResult> attempt = net::connect_to_one_of(loop_, endpoints_, deadline, one_try_);
    net::ConnectResult connected = co_await std::move(attempt);
    if (!connected.connection) {
      in_vain_ = posix_error(connected.error, "connecting to " + to_string(endpoints_.front())).what();
      co_return false;
    }
    auto link = std::make_unique<Link>(*std::move(connected.connection));
    const net::Endpoint peer = link->connection.peer();
    Knock call = Resume{accepted_.ticket, line_->received(), {}};
    KnockResult result =
        co_await knock(*link, address_, std::move(call), "going on with the session", deadline, deadline);
    if (const Refused* refused = std::get_if<Refused>(&result)) {
      reason = refused->sentence;
    } else if (const Failure* failure = std::get_if<Failure>(&result)) {
      reason = failure->cause.sentence();
      ToRank message = *failure;
      const std::function<bool(ToRank&)> on_message = handlers_.on_message;
      static_cast<void>(!on_message || on_message(message));
    }
    const NoAnswer* none = std::get_if<NoAnswer>(&result);
    in_vain_ = none != nullptr ? none->reason : in_vain_;
    const Accepted* accepted = std::get_if<Accepted>(&result);
    if (accepted == nullptr) {
      co_return false;
    }
    link->watch(std::chrono::milliseconds(accepted_.liveness_ms));
    const bool attached = line_->attach(std::move(link), accepted->received);
    peer_ = attached ? peer : peer_;
    reason = attached ? "" : "the store misses frames that it had acknowledged, or claims some that were never sent";
    co_return attached;
  }

  /// Adds what the store's name means by now to where the session may go on.
  async::Task<void> look_up(Deadline deadline) {
    async::Task<net::Resolution> lookup = net::resolve(loop_, address_.host, address_.port, deadline);
    const net::Resolution found = co_await std::move(lookup);
    for (const net::Endpoint& each : found.endpoints) {
      if (each != peer_) {
        endpoints_.push_back(each);
      }
    }
  }

  async::EventLoop& loop_;
  Address address_;
  net::Endpoint peer_;  ///< where the session's last connection went
  Accepted accepted_;
  Handlers handlers_;
  std::shared_ptr<Line> line_;
  async::Spawned beating_;
  std::vector<net::Endpoint> endpoints_;  ///< where the session may go on
  std::chrono::milliseconds one_try_{};   ///< how long each of them may take to answer the next time
  std::string in_vain_;                   ///< why none of them did
  async::Spawned resuming_;
  async::Spawned looking_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
