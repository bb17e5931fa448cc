#pragma once
/// @file
/// FormationClient: the connection of an elastic job's worker with the store, kept from attempt to attempt.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <variant>

#include "dtrain/async/loop_handle.hpp"
#include "dtrain/async/task.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/net/connection.hpp"
#include "dtrain/rendezvous/client/client_handshake.hpp"
#include "dtrain/rendezvous/client/slow_notice.hpp"
#include "dtrain/rendezvous/formation/call_report.hpp"
#include "dtrain/rendezvous/formation/formation_messages.hpp"
#include "dtrain/rendezvous/session/session.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Owns a thread, which sends heartbeats while the program computes. Threads: one of the program; committed() from any.
/// A template, as DTRAIN_ON_USE explains.
template <class = void>
class FormationClient final : private SessionHandler {
 public:
  /// Connects at the first announce_blocking. @param timeout for connecting @param reconnect_timeout the same, once the
  /// worker has been a rank @param notice_after how long the worker connects, or waits for other ranks at the end,
  /// until a warning in the log says so
  FormationClient(StoreAddress address, std::chrono::nanoseconds timeout,
                  std::optional<std::chrono::nanoseconds> reconnect_timeout = {},
                  std::chrono::milliseconds notice_after = std::chrono::seconds(10))
      : address_(std::move(address)),
        timeout_(timeout),
        reconnect_timeout_(reconnect_timeout.value_or(timeout)),
        notice_after_(notice_after) {
    address_.role = ClientRole::worker;
    address_.attempt = 0;
    call_report_ = std::make_shared<CallReport>([this, handle = thread_.handle()](std::uint64_t attempt) {
      handle->post([this, frame = encode(Called{attempt})]() mutable { send(std::move(frame)); });
    });
  }
  FormationClient(const FormationClient&) = delete;
  FormationClient& operator=(const FormationClient&) = delete;
  ~FormationClient() {
    try {
      const auto end = [this](async::EventLoop&) -> async::Task<void> {
        end_connection();
        co_return;
      };
      thread_.run_blocking(end, Deadline::after(std::chrono::seconds(1)), "leaving the job's formation");
    } catch (...) {  // the loop has ended, and with it the connection
    }
  }

  /// Sets another host of the store. @pre announce_blocking() was not called
  void set_host(std::string host) { address_.host = std::move(host); }

  /// Announces this worker, after connecting if there is no connection. Blocking: until the worker gets a rank or the
  /// job has finished; the store bounds this wait, and the client the time in which the store sends nothing. Once its
  /// host is barred, this worker logs until when and why, and waits for `timeout` more at most.
  /// @returns an Assignment, Finished, or OwnError if the announced error is the worker's own
  /// @throws Error (usage) if the store rejects a worker unlike the others, (refused) one without the job's secret,
  /// (protocol) if no store of dtrain is there; JobFailed with the cause that has ended the job, if the store does not
  /// answer in time or is another job's than this rank's, and after leave(); Error (posix) if this process lacks what
  /// it needs to connect
  ToWorker announce_blocking(const Announce& announce) {
    for (;;) {
      throw_if_leaving();
      static_cast<void>(take_answer());
      const bool was_rank = announce.job != 0;
      const Deadline deadline = Deadline::after(was_rank ? reconnect_timeout_ : timeout_);
      const auto send = [&](async::EventLoop&) { return send_announce(announce, deadline); };
      try {
        thread_.run_blocking(send, with_grace(deadline), "announcing this worker to the job's store");
      } catch (const Error& error) {
        throw_if_leaving();
        const bool is_posix = error.code().category() == std::generic_category();
        const bool is_mistake = !was_rank && is_reached_ && error.code() != make_error_code(Errc::timeout);
        const bool is_local = dynamic_cast<const net::Unreachable*>(&error) == nullptr;  // no descriptors are left
        if (is_posix ? is_local : is_mistake) throw;
        throw_cause({CauseKind::lost,
                     -1,
                     {},
                     format_text("{}{}", {was_rank ? "its store does not answer any more: " : "", error.what()})});
      }
      const std::optional<ToWorker> answer = await_answer();
      if (!answer) continue;
      if (const Failure* failure = std::get_if<Failure>(&*answer)) throw_cause(failure->cause);
      if (const Refused* refused = std::get_if<Refused>(&*answer)) {
        const std::string text = format_text("this worker was refused: {}", {refused->sentence});
        if (refused->other_job && was_rank) throw_cause({CauseKind::lost, -1, {}, text});
        throw Error(refused->other_job ? Errc::refused : Errc::usage, text);
      }
      return *answer;
    }
  }

  /// This worker leaves the job: announce_blocking() throws, now and later. Blocking: no. Threads: any.
  void leave() noexcept {
    const std::lock_guard lock(mutex_);
    is_leaving_ = true;
    changed_.notify_all();
  }

  /// Whether the store wants to know of the program's next call of dtrain.
  const std::shared_ptr<CallReport>& call_report() const noexcept { return call_report_; }

  /// For tasks that end with this object.
  const std::shared_ptr<async::LoopHandle>& loop() const noexcept { return thread_.handle(); }

  /// Reports to the store that a step was committed in an attempt. Blocking: no. The message may be lost.
  void committed(const Committed& message) noexcept {
    try {
      post(encode(message));
    } catch (...) {  // no memory: the next Announce has the same information
    }
  }

  /// Reports to the store that the function has returned in the attempt; logs it if that of other ranks has not for
  /// long. Blocking: until the function has returned on all ranks, the attempt has failed, or the connection has ended.
  /// @param digest Finished::digest @returns the end of the job; nullopt: call announce_blocking() next
  std::optional<Finished> finish_blocking(std::uint64_t attempt, std::uint64_t digest, FailureLatch& attempt_latch) {
    const FailureLatch::Subscription waking = attempt_latch.subscribe([this](const Cause&) {
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
    });
    post(encode(Finished{attempt, false, digest}));
    {
      std::unique_lock lock(mutex_);
      const auto is_over = [&] { return answer_.has_value() || !is_connected_ || attempt_latch.failed(); };
      if (!block_until(changed_, lock, Deadline::after(notice_after_), is_over)) {
        log(LogLevel::warning,
            "the function that this worker gave to train() has returned; it waits until that of the other ranks has");
        block_until(changed_, lock, Deadline::unbounded("the attempt fails where a rank does not come to its end"),
                    is_over);
      }
    }
    return take_end();
  }

  /// Tells the store, if there is a connection, why this worker ends: its attempt fails. Blocking: no. Threads: any.
  void report(Cause cause) noexcept {
    try {
      post(encode(FailureReport{std::move(cause)}));
    } catch (...) {  // no memory: the store sees the end of the connection
    }
  }

  /// The same. Blocking: until the store has ended the connection, 2 s at most. @returns the end of the job, if the
  /// store had sent it before
  std::optional<Finished> report_blocking(Cause cause) noexcept {
    report(std::move(cause));
    try {
      std::unique_lock lock(mutex_);
      block_until(changed_, lock, Deadline::after(std::chrono::seconds(2)), [this] { return !is_connected_; });
    } catch (...) {  // the store sees the end of the connection
    }
    return take_end();
  }

 private:
  std::optional<ToWorker> take_answer() {
    const std::lock_guard lock(mutex_);
    return std::exchange(answer_, std::nullopt);
  }

  std::optional<Finished> take_end() {
    const std::optional<ToWorker> answer = take_answer();
    const Finished* const finished = answer ? std::get_if<Finished>(&*answer) : nullptr;
    return finished == nullptr ? std::nullopt : std::optional<Finished>(*finished);
  }

  void throw_if_leaving() {
    const std::lock_guard lock(mutex_);
    if (is_leaving_) throw_cause({CauseKind::stopped, -1, {}, "this worker leaves it"});
  }

  /// Blocking: as announce_blocking(); while the host is barred, for timeout_ from the first Barred on.
  /// @returns no Barred; nullopt: the connection has ended
  std::optional<ToWorker> await_answer() {
    const Deadline unbounded = Deadline::unbounded("the store answers, or its silence ends the connection");
    Deadline deadline = unbounded;
    std::optional<Deadline> latest;
    for (std::string reason;;) {
      bool is_in_time = false;
      {
        std::unique_lock lock(mutex_);
        const auto goes_on = [this] { return answer_.has_value() || !is_connected_ || is_leaving_; };
        is_in_time = block_until(changed_, lock, deadline, goes_on);
      }
      throw_if_leaving();
      if (!is_in_time) {
        throw_error(Errc::timeout,
                    "joining the elastic job at {}: the deadline passed while this worker had to wait, because {}; "
                    "mend what ends the workers of this host, or set a longer DTRAIN_TIMEOUT_SECONDS",
                    {address_.text(), reason});
      }
      std::optional<ToWorker> answer = take_answer();
      const Barred* const barred = answer ? std::get_if<Barred>(&*answer) : nullptr;
      if (barred == nullptr) return answer;
      reason = barred->reason;
      const std::chrono::milliseconds time(barred->milliseconds);
      log(LogLevel::warning, format_text("this worker waits {}, until {}, before it may become a rank, because {}",
                                         {duration_text(time), time_of_day(time), reason}));
      latest = latest.value_or(Deadline::after(timeout_));
      deadline = Deadline::after(time).instant() > latest->instant() ? *latest : unbounded;
    }
  }

  /// "17:04:09 UTC": the time of day, that much later than now.
  static std::string time_of_day(std::chrono::milliseconds later) {
    const auto since_1970 = std::chrono::system_clock::now().time_since_epoch() + later;
    const std::int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(since_1970).count();
    const std::int64_t hour = seconds / 3600 % 24;
    const std::int64_t minute = seconds / 60 % 60;
    return format_text("{}{}:{}{}:{}{} UTC",
                       {hour / 10, hour % 10, minute / 10, minute % 10, seconds % 60 / 10, seconds % 10});
  }

  void post(Frame frame) {
    thread_.handle()->post([this, frame = std::move(frame)]() mutable { send(std::move(frame)); });
  }

  /// @name On the loop's thread
  /// @{
  void send(Frame frame) {
    if (session_ != nullptr) static_cast<void>(session_->send(std::move(frame)));
  }

  void end_connection() noexcept {
    heartbeat_task_.cancel();
    if (session_ != nullptr) {
      session_->close();
      session_.reset();
    }
    const std::lock_guard lock(mutex_);
    is_connected_ = false;
    changed_.notify_all();
  }

  async::Task<void> send_announce(Announce announce, Deadline deadline) {
    if (session_ != nullptr) {
      static_cast<void>(session_->send(encode(announce)));
      co_return;
    }
    const std::string doing = format_text("joining the elastic job at {}", {address_.text()});
    net::Backoff backoff;
    SlowNotice notice(thread_.loop(), doing, "nothing has answered there yet", notice_after_);
    backoff.on_retry = [this, &notice](std::string why) {
      throw_if_leaving();
      notice.note(std::move(why));
    };
    std::string last_answer;
    for (is_reached_ = false;; throw_if_leaving()) {
      std::optional<net::Connection> connection;
      try {
        async::Task<net::Connection> connecting =
            net::connect_with_backoff(thread_.loop(), address_.host, address_.port, deadline, backoff);
        connection.emplace(co_await std::move(connecting));
      } catch (const Error&) {
        if (last_answer.empty() || !deadline.passed()) throw;
        throw late_error(doing, last_answer);  // it was too late for another try, which explains less
      }
      is_reached_ = true;
      notice.note("what listens there took the connection and has not answered yet");
      const Deadline silent_for_long = Deadline::after(telling_silence);
      auto session = std::make_shared<Session>(*std::move(connection));
      async::Task<HandshakeResult> shaking = handshake(*session, address_, encode(announce), doing, deadline, deadline);
      const HandshakeResult result = co_await std::move(shaking);
      if (const HandshakeError* error = std::get_if<HandshakeError>(&result)) {
        if (error->timed_out || deadline.passed()) {
          const bool is_cut_short = error->timed_out && !silent_for_long.passed() && !last_answer.empty();
          throw late_error(doing, is_cut_short ? last_answer : error->reason);
        }
        notice.note(last_answer = error->reason);
        co_await thread_.loop().sleep_for(std::chrono::milliseconds(50));
      } else if (const Accepted* accepted = std::get_if<Accepted>(&result)) {
        start(std::move(session), *accepted);
        co_return;
      } else {
        const Refused* const refused = std::get_if<Refused>(&result);
        answer(refused != nullptr ? ToWorker(*refused) : ToWorker(std::get<Failure>(result)));
        co_return;
      }
    }
  }

  void start(std::shared_ptr<Session> session, const Accepted& accepted) {
    session_ = std::move(session);
    {
      const std::lock_guard lock(mutex_);
      is_connected_ = true;
    }
    heartbeat_task_ = thread_.loop().spawn(run_heartbeats(std::chrono::milliseconds(accepted.heartbeat_ms),
                                                          std::chrono::milliseconds(accepted.liveness_ms)));
    session_->start(*this, SessionOptions{});
  }

  async::Task<void> run_heartbeats(std::chrono::milliseconds every, std::chrono::milliseconds liveness) {
    co_await send_heartbeats(thread_.loop(), *session_, every, liveness);
    end_connection();
  }

  void answer(ToWorker message) {
    const std::lock_guard lock(mutex_);
    const bool is_final = answer_ && (std::holds_alternative<OwnError>(*answer_) ||  // whatever the job's end is
                                      std::holds_alternative<Refused>(*answer_));
    if (!is_final) answer_ = std::move(message);
    changed_.notify_all();
  }

  bool on_frame(std::span<const std::byte> frame) override {
    std::optional<ToWorker> message = decode<ToWorker>(frame);
    if (!message) return false;
    if (const CallRequest* request = std::get_if<CallRequest>(&*message)) {
      call_report_->request(request->attempt);
    } else {
      answer(*std::move(message));
    }
    return true;
  }
  void on_disconnected(const std::string&) override { end_connection(); }
  /// @}

  StoreAddress address_;
  const std::chrono::nanoseconds timeout_;
  const std::chrono::nanoseconds reconnect_timeout_;
  const std::chrono::milliseconds notice_after_;
  std::mutex mutex_;
  std::condition_variable changed_;
  /// @name Guarded by the mutex
  /// @{
  std::optional<ToWorker> answer_;
  bool is_connected_ = false;
  bool is_leaving_ = false;
  /// @}
  std::shared_ptr<CallReport> call_report_;  ///< a group may keep it for longer
  bool is_reached_ = false;                  ///< the last announce_blocking() has made a connection
  std::shared_ptr<Session> session_;         ///< the loop's thread alone uses it, and the task
  async::TaskHandle heartbeat_task_;
  async::LoopThread thread_;  ///< last: its loop ends before what it uses
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
