#pragma once
/// @file
/// Store client: pending requests of a rank, their responses, and the job's failure.

#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "dtrain/async/manual_reset_event.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/rendezvous/client/client_session.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Shared by the JoinedJob, which ends it, and the tasks that wait for responses.
/// Lifetime: the loop outlives it. Threads: the loop's.
class StoreClient {
 public:
  /// @param connection on which the store has accepted this rank
  StoreClient(async::EventLoop& loop, StoreAddress address, const Accepted& accepted,
              std::unique_ptr<FramedConnection> connection, int rank, std::shared_ptr<FailureLatch> failure)
      : loop_(loop),
        rank_(rank),
        store_(address.text()),
        failure_(std::move(failure)),
        welcomed_(loop),
        left_(loop),
        failure_received_(loop),
        session_(
            std::make_unique<ClientSession>(loop, std::move(address), accepted, std::move(connection), handlers())) {}
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;
  ~StoreClient() { end("the session with the store ended"); }

  /// Waits until all ranks have joined. The store's own join timeout passes earlier, unless its machine stood still;
  /// the store then sends the missing ranks as the first cause.
  /// @returns this rank's Membership; nothing if the store answered neither by the deadline nor within a second after
  /// it
  /// @throws the job's first cause
  async::Task<std::optional<Membership>> wait_for_welcome(Deadline deadline) {
    const async::WakeReason ready = co_await welcomed_.wait(deadline);
    if (ready == async::WakeReason::timed_out) {
      co_await welcomed_.wait(Deadline::after(response_grace));
    }
    failure_->throw_if_failed(rank_);
    co_return std::move(membership_);
  }

  /// Sends a request and waits for its response. At the deadline it cancels the request. It then waits up to a second
  /// for the response, which lists what is missing.
  /// @param self outlives the wait
  /// @param doing begins every error sentence: "waiting for key 'a' of the store"
  /// @returns a response with Status::ok or Status::missing
  /// @throws the job's first cause; Error (timeout), (refused); (closed) after leave or end; (limit): too much to be
  /// sent
  static async::Task<Response> send_request(std::shared_ptr<StoreClient> self, Request request, std::string doing,
                                            Deadline deadline) {
    self->require_open(doing);
    PendingRequest pending(*self, request.id = ++self->last_id_);
    self->post(encode(std::move(request)), doing);
    async::WakeReason ready = co_await pending.over.wait(deadline);
    if (ready == async::WakeReason::timed_out) {
      pending.cancel();
      ready = co_await pending.over.wait(Deadline::after(response_grace));
    }
    if (!pending.response || pending.response->status == Status::failed) {
      self->require_open(doing);
    }
    self->require_good(pending.response, doing);
    co_return *std::move(pending.response);
  }

  /// Sends Leave, and ends every other wait. @returns whether the store acknowledged it by the deadline
  async::Task<bool> leave(Deadline deadline) {
    if (!open()) {
      co_return false;
    }
    leaving_ = true;
    post(encode(Leave{}), "leaving the job");
    const async::WakeReason ready = co_await left_.wait(deadline);
    const bool acknowledged = ready == async::WakeReason::ready && acknowledged_;
    end("this rank has left the job");
    co_return acknowledged;
  }

  /// Reports a failure to the store. If the store sends no first cause within a second, this rank takes `cause` for it.
  void report(const Cause& cause) {
    if (failure_->failed()) {
      return;
    }
    if (!open() || leaving_) {
      failure_->set(cause);
      return;
    }
    try {
      post(encode(FailureReport{cause}), "reporting a failure");
      if (reporting_.done()) {
        reporting_ = loop_.spawn(fail_unless_answered(cause));
      }
    } catch (const Error&) {  // too many bytes wait to be sent: the store takes none
      fail(cause);
    }
  }

  /// Closes the connection; every wait ends with `sentence`. Without leave(), the job counts this rank as lost.
  void end(std::string sentence) noexcept {
    if (open()) {
      end_sentence_ = std::move(sentence);
    }
    reporting_.cancel();
    session_.reset();
    wake_all();
  }

  int rank() const noexcept { return rank_; }
  FailureLatch& failure() const noexcept { return *failure_; }

 private:
  static constexpr std::chrono::milliseconds response_grace{1000};

  /// Pending request, in the frame of the coroutine that sent it.
  struct PendingRequest {
    PendingRequest(StoreClient& owner, std::uint64_t number) : client(owner), id(number), over(owner.loop_) {
      client.pending_.emplace(id, this);
    }
    PendingRequest(const PendingRequest&) = delete;
    PendingRequest& operator=(const PendingRequest&) = delete;
    ~PendingRequest() {
      client.pending_.erase(id);
      cancel();
    }

    /// Notifies the store that no coroutine waits any more.
    void cancel() noexcept {
      if (response || cancelled || !client.open()) {
        return;
      }
      cancelled = true;
      try {
        client.post(encode(Cancel{id}), "taking a request back");
      } catch (...) {  // too many bytes wait to be sent: the store keeps the request
      }
    }

    StoreClient& client;
    std::uint64_t id;
    async::ManualResetEvent over;
    std::optional<Response> response{};  ///< empty if none arrived in time
    bool cancelled = false;
  };

  bool open() const noexcept { return session_ != nullptr; }

  ClientSession::MessageHandlers handlers() {
    ClientSession::MessageHandlers handlers;
    handlers.on_message = [this](ToRank& message) {
      std::visit([this](auto& each) { on(each); }, message);
      return true;
    };
    handlers.on_lost = [this](const std::string& how) { on_connection_lost(how); };
    return handlers;
  }

  void require_open(const std::string& doing) const {
    failure_->throw_if_failed(rank_);
    if (!open() || leaving_) {
      throw Error(Errc::closed, doing + ": " + (open() ? "this rank is leaving the job" : end_sentence_))
          .with_rank(rank_);
    }
  }

  void require_good(const std::optional<Response>& response, const std::string& doing) const {
    if (!response) {
      throw Error(Errc::timeout, doing + ": the deadline passed and the store does not answer").with_rank(rank_);
    }
    if (response->status == Status::cancelled) {
      throw Error(Errc::timeout, doing + ": the deadline passed; " + sanitize(response->text)).with_rank(rank_);
    }
    if (response->status != Status::ok && response->status != Status::missing) {
      throw Error(Errc::refused, doing + ": " + sanitize(response->text)).with_rank(rank_);
    }
  }

  void post(Frame frame, const std::string& doing) {
    if (!session_->send(std::move(frame))) {
      throw Error(Errc::limit, doing + ": " + std::to_string(session_->waiting_bytes()) +
                                   " bytes wait to be sent to the store; await some requests first")
          .with_rank(rank_);
    }
  }

  void wake_all() noexcept {
    for (const auto& [id, pending] : pending_) {
      pending->over.set();
    }
    welcomed_.set();
    left_.set();
    failure_received_.set();
  }

  async::Task<void> fail_unless_answered(Cause cause) {
    const async::WakeReason ready = co_await failure_received_.wait(Deadline::after(response_grace));
    if (ready == async::WakeReason::timed_out) {
      fail(cause);
    }
  }

  void on(Response& response) {
    const auto found = pending_.find(response.id);
    if (found != pending_.end()) {
      found->second->response = std::move(response);
      found->second->over.set();
    }
  }
  void on(const Failure& failure) { fail(failure.cause); }
  void on(const Left&) {
    acknowledged_ = true;
    left_.set();
  }
  void on(Welcome& welcome) {
    membership_ = std::move(welcome.membership);
    welcomed_.set();
  }

  /// The job has failed: every wait ends with its cause.
  void fail(const Cause& cause) {
    failure_->set(cause);
    for (const auto& [id, pending] : pending_) {
      pending->over.set();
    }
    welcomed_.set();
    failure_received_.set();
  }

  /// The store is lost: the job has failed, unless this rank is leaving or knows another cause.
  void on_connection_lost(const std::string& how) {
    if (!leaving_ && !failure_->failed()) {
      fail(Cause{CauseKind::lost,
                 -1,
                 {},
                 "the store of the job at " + store_ + " went away: rank 0 or its launcher ended (" + how + ")"});
    }
    wake_all();
  }

  async::EventLoop& loop_;
  int rank_;
  std::string store_;
  std::shared_ptr<FailureLatch> failure_;
  async::ManualResetEvent welcomed_;
  async::ManualResetEvent left_;
  async::ManualResetEvent failure_received_;
  std::uint64_t last_id_ = 0;
  std::optional<Membership> membership_;
  std::map<std::uint64_t, PendingRequest*> pending_;
  bool leaving_ = false;
  bool acknowledged_ = false;
  std::string end_sentence_;
  async::TaskHandle reporting_;
  std::unique_ptr<ClientSession> session_;  ///< null once ended
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
