#pragma once
/// @file
/// StoreClient: a client's session with the job's store, from joining to leaving: heartbeats, requests, responses.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "dtrain/async/events.hpp"
#include "dtrain/async/task.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/rendezvous/client/store_connector.hpp"
#include "dtrain/rendezvous/session/session.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// The client side of the rendezvous, from joining to leaving. Its layers, from the lowest: Session (a connection that
/// carries frames), handshake() and StoreConnector (Hello, Challenge, Join, until the store accepts), StoreClient
/// (sends heartbeats, pairs requests with responses). Lifetime: the loop outlives it. Threads: the loop's, destruction
/// included.
class StoreClient final : public std::enable_shared_from_this<StoreClient>, private SessionHandler {
 public:
  /// One owner, whose end ends the session. Tasks that wait for a response then throw; until then they share the
  /// client. Without an earlier leave(), the job counts the rank as lost. Threads: the loop's.
  using Owner = std::shared_ptr<StoreClient>;

  /// Connects to the store, with retries until the store listens, and waits until all ranks have joined.
  /// @param failure receives the job's first cause, during the join and for the session's life
  /// @throws Error (refused) with the store's sentence, or if one side does not know the other's secret; the job's
  /// first cause; Error (timeout); and the errors of connecting
  static async::Task<Owner> join(async::EventLoop& loop, StoreAddress address, Join request,
                                 std::shared_ptr<FailureLatch> failure, Deadline deadline) {
    const int rank = request.info.rank;
    const int world_size = request.world_size;
    const std::string doing = format_text("joining the job at {} as {}{}",
                                          {address.text(), address.role == ClientRole::rank ? "rank " : "node ", rank});
    StoreConnector connector(loop, std::move(address), std::move(request), *failure, doing, deadline);
    ConnectedStore connected = co_await connector.connect_and_join();
    auto shared = std::make_shared<StoreClient>(loop, std::move(connected), rank, std::move(failure));
    Owner client(shared.get(), [shared](StoreClient* ended) { ended->end("the session with the store has ended"); });
    const async::WakeReason ready = co_await client->welcomed_.wait(deadline);
    if (ready == async::WakeReason::timed_out) {  // the store's own timeout has passed, unless its machine stood still
      co_await client->welcomed_.wait(Deadline::after(response_grace));
    }
    client->require_welcome(doing, world_size);
    co_return std::move(client);
  }

  /// @param store has accepted this rank
  StoreClient(async::EventLoop& loop, ConnectedStore store, int rank, std::shared_ptr<FailureLatch> failure)
      : loop_(loop),
        address_(std::move(store.address)),
        session_(std::move(store.session)),
        rank_(rank),
        failure_(std::move(failure)),
        welcomed_(loop),
        left_(loop),
        failure_received_(loop) {
    const std::chrono::milliseconds liveness(store.accepted.liveness_ms);
    session_->watch();
    heartbeat_task_ = loop_.spawn(run_heartbeats(std::chrono::milliseconds(store.accepted.heartbeat_ms), liveness));
    status_task_ = loop_.spawn(run_statuses(2 * std::chrono::milliseconds(store.accepted.heartbeat_ms)));
    session_->start(*this, SessionOptions{});  // last: its tasks use this object
  }
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;
  ~StoreClient() { end("the session with the store ended"); }

  const Membership& membership() const noexcept { return *membership_; }

  /// From now on the store gets what `read` returns, with every second heartbeat and after the job's failure. Lifetime:
  /// what it refers to outlives the client.
  void send_statuses(std::function<RankStatus()> read) { read_status_ = std::move(read); }

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
    send_status();  // which may have a finding
    leaving_ = true;
    post(encode(Leave{}), "leaving the job");
    const async::WakeReason ready = co_await left_.wait(deadline);
    const bool acknowledged = ready == async::WakeReason::ready && acknowledged_;
    end("this rank has left the job");
    co_return acknowledged;
  }

  /// Whether the store has not answered a report yet, which may still wait to be sent. At most for a second.
  bool is_reporting() const noexcept { return !reporting_.done(); }

  /// Reports a failure to the store. If the store sends no first cause within a second, `cause` is this rank's first
  /// cause.
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
      on_failure(cause);
    }
  }

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

  bool open() const noexcept { return end_sentence_ == nullptr; }

  void require_welcome(const std::string& doing, int world_size) const {
    failure_->throw_if_failed(rank_);
    if (!membership_) {
      throw_error(Errc::timeout, "{}: the deadline passed; the store did not say which ranks are missing", {doing});
    }
    if (membership_->rank != rank_ || membership_->world_size != world_size) {
      throw_error(Errc::protocol, "{}: the store answered for another rank", {doing});
    }
  }

  /// Closes the connection; every wait ends with `sentence`. Without leave(), the job counts this rank as lost.
  DTRAIN_NOT_INLINED void end(const char* sentence) noexcept {
    if (open()) {
      end_sentence_ = sentence;
    }
    reporting_.cancel();
    close();
    wake_requests();
    left_.set();
  }

  void close() noexcept {
    session_->close();
    heartbeat_task_.cancel();
    status_task_.cancel();
  }

  /// Sends heartbeats, and ends the session if the store sends nothing for the liveness time, in which the time that
  /// this process itself was stopped or got no processor does not count.
  async::Task<void> run_heartbeats(std::chrono::milliseconds every, std::chrono::milliseconds liveness) {
    co_await send_heartbeats(loop_, *session_, every, liveness);
    lose(silence_text(liveness), true);
  }

  async::Task<void> run_statuses(std::chrono::milliseconds every) {
    for (;;) {
      co_await loop_.sleep_for(std::max(every, std::chrono::milliseconds(10)));
      send_status();
    }
  }

  void send_status() noexcept {
    if (!read_status_ || !open() || leaving_) return;
    try {
      static_cast<void>(session_->send(encode(read_status_())));
    } catch (...) {
      // There is no memory for it, or too many bytes wait to be sent.
    }
  }

  void require_open(const std::string& doing) const {
    failure_->throw_if_failed(rank_);
    if (!open() || leaving_) {
      fail(Errc::closed, doing, open() ? "this rank is leaving the job" : end_sentence_);
    }
  }

  void require_good(const std::optional<Response>& response, const std::string& doing) const {
    if (!response) {
      fail(Errc::timeout, doing, "the deadline passed and the store does not answer");
    }
    if (response->status == Status::cancelled) {
      fail(Errc::timeout, doing, format_text("the deadline passed; {}", {sanitize(response->text)}));
    }
    if (response->status != Status::ok && response->status != Status::missing) {
      fail(Errc::refused, doing, sanitize(response->text));
    }
  }

  void post(Frame frame, const std::string& doing) {
    if (!session_->send(std::move(frame))) {
      fail(
          Errc::limit, doing,
          format_text("{} bytes wait to be sent to the store; await some requests first", {session_->waiting_bytes()}));
    }
  }

  /// @throws Error of this rank
  [[noreturn]] DTRAIN_NOT_INLINED void fail(Errc code, const std::string& doing, std::string_view problem,
                                            SourceLocation where = SourceLocation::current()) const {
    throw Error(code, format_text("{}: {}", {doing, problem}), where).with_rank(rank_);
  }

  DTRAIN_NOT_INLINED void wake_requests() noexcept {
    for (const auto& [id, pending] : pending_) {
      pending->over.set();
    }
    welcomed_.set();
    failure_received_.set();
  }

  async::Task<void> fail_unless_answered(Cause cause) {
    const async::WakeReason ready = co_await failure_received_.wait(Deadline::after(response_grace));
    if (ready == async::WakeReason::timed_out) {
      on_failure(cause);
    }
  }

  bool on_frame(std::span<const std::byte> frame) override {
    std::optional<ToRank> message = decode<ToRank>(frame);
    if (message) {
      std::visit([this](auto& each) { on(each); }, *message);
    }
    return message.has_value();
  }
  void on(Response& response) {
    const auto found = pending_.find(response.id);
    if (found != pending_.end()) {
      found->second->response = std::move(response);
      found->second->over.set();
    }
  }
  void on(const Failure& failure) {
    send_status();  // before the latch ends what the rank does
    on_failure(failure.cause);
  }
  void on(const Left&) {
    acknowledged_ = true;
    left_.set();
  }
  void on(Welcome& welcome) {
    membership_ = std::move(welcome.membership);
    const net::SocketAddress local = session_->local();
    if (!local.is_loopback()) {
      membership_->route_address = local.host();
    }
    welcomed_.set();
  }

  /// The job has failed: every wait ends with its cause.
  void on_failure(const Cause& cause) {
    failure_->set(cause);
    wake_requests();
  }

  void on_disconnected(const std::string& how) override { lose(how, false); }

  /// The store is lost: the job has failed, unless this rank is leaving or knows another cause.
  /// @param how a clause @param is_silent the connection had not ended
  void lose(const std::string& how, bool is_silent) {
    close();
    if (!leaving_ && !failure_->failed()) {
      std::string text = format_text("the store of the job at {} went away: {}{}",
                                     {address_.text(), is_silent ? "" : "rank 0 or its launcher ended: ", how});
      on_failure(Cause{CauseKind::lost, -1, {}, std::move(text)});
    }
    wake_requests();
    left_.set();
  }

  async::EventLoop& loop_;
  StoreAddress address_;
  std::shared_ptr<Session> session_;
  int rank_;
  std::shared_ptr<FailureLatch> failure_;
  async::ManualResetEvent welcomed_;
  async::ManualResetEvent left_;
  async::ManualResetEvent failure_received_;
  std::uint64_t last_id_ = 0;
  std::optional<Membership> membership_;  ///< the rank's place, known since Welcome
  std::map<std::uint64_t, PendingRequest*> pending_;
  bool leaving_ = false;
  bool acknowledged_ = false;
  const char* end_sentence_ = nullptr;  ///< the sentence, once ended
  async::TaskHandle reporting_;
  std::function<RankStatus()> read_status_;
  async::TaskHandle heartbeat_task_;
  async::TaskHandle status_task_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
