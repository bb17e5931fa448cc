#pragma once
/// @file
/// A rank's side of its session with the store: questions out, answers and the job's failure in.

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

#include "dtrain/async/event.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/rendezvous/lifeline.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Shared by the Session, which ends it, and the tasks that wait for answers.
/// Lifetime: the loop outlives it. Threads: the loop's.
class Exchange {
 public:
  /// @param link on which the store has accepted this rank
  Exchange(async::EventLoop& loop, Address address, const Accepted& accepted, std::unique_ptr<Link> link, int rank,
           std::shared_ptr<FailureLatch> failure)
      : loop_(loop),
        rank_(rank),
        store_(address.text()),
        failure_(std::move(failure)),
        welcomed_(loop),
        left_(loop),
        told_(loop),
        line_(std::make_unique<Lifeline>(loop, std::move(address), accepted, std::move(link), handlers())) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() { end("the session with the store ended"); }

  /// Waits until all ranks have joined: who this rank is; nothing where the deadline passed, and the store has not said
  /// a moment later who is missing. It gives up before its ranks do, unless the machine stood still.
  /// @throws the job's first cause
  async::Task<std::optional<Membership>> welcome(Deadline deadline) {
    const async::Ready ready = co_await welcomed_.wait(deadline);
    if (ready == async::Ready::timed_out) {
      co_await welcomed_.wait(Deadline::after(last_word));
    }
    failure_->throw_if_failed(rank_);
    co_return std::move(membership_);
  }

  /// Sends a request and waits for its answer. After the deadline it takes the request back, and waits a moment for the
  /// store to say what was missing.
  /// @param self outlives the wait
  /// @param doing begins every sentence: "waiting for key 'a' of the store"
  /// @returns an answer that is ok or missing
  /// @throws the job's first cause; Error (timeout); Error (refused); Error (closed) after leave or end; Error (limit)
  /// where too much waits to be sent
  static async::Task<Response> ask(std::shared_ptr<Exchange> self, Request request, std::string doing,
                                   Deadline deadline) {
    self->require_open(doing);
    Question question(*self, request.id = ++self->last_id_);
    self->post(encode(std::move(request)), doing);
    async::Ready ready = co_await question.over.wait(deadline);
    if (ready == async::Ready::timed_out) {
      question.take_back();
      ready = co_await question.over.wait(Deadline::after(last_word));
    }
    if (!question.answer || question.answer->status == Status::failed) {
      self->require_open(doing);
    }
    self->require_good(question.answer, doing);
    co_return *std::move(question.answer);
  }

  /// Says leave(ok). @returns whether the store acknowledged it by the deadline. Every other wait ends.
  async::Task<bool> leave(Deadline deadline) {
    if (!open()) {
      co_return false;
    }
    leaving_ = true;
    post(encode(Leave{}), "leaving the job");
    const async::Ready ready = co_await left_.wait(deadline);
    const bool acknowledged = ready == async::Ready::ready && acknowledged_;
    end("this rank has left the job");
    co_return acknowledged;
  }

  /// Tells the store. Where it does not answer with the job's first cause soon, this one is taken for it.
  void report(const Cause& cause) {
    if (failure_->failed()) {
      return;
    }
    if (!open() || leaving_) {
      failure_->set(cause);
      return;
    }
    try {
      post(encode(Report{cause}), "reporting a failure");
      if (reporting_.done()) {
        reporting_ = loop_.spawn(insist(cause));
      }
    } catch (const Error&) {  // too much waits to be sent: the store takes nothing
      fail(cause);
    }
  }

  /// Closes the connection; every wait ends with `sentence`. Without leave, the job sees a lost rank.
  void end(std::string sentence) noexcept {
    if (open()) {
      end_sentence_ = std::move(sentence);
    }
    reporting_.cancel();
    line_.reset();
    wake_all();
  }

  int rank() const noexcept { return rank_; }
  FailureLatch& failure() const noexcept { return *failure_; }

 private:
  static constexpr std::chrono::milliseconds last_word{1000};

  /// A request that waits, in the frame of the coroutine that asked.
  struct Question {
    Question(Exchange& home, std::uint64_t number) : exchange(home), id(number), over(home.loop_) {
      exchange.questions_.emplace(id, this);
    }
    Question(const Question&) = delete;
    Question& operator=(const Question&) = delete;
    ~Question() {
      exchange.questions_.erase(id);
      take_back();
    }

    /// Tells the store that nobody waits any more.
    void take_back() noexcept {
      if (answer || taken_back || !exchange.open()) {
        return;
      }
      taken_back = true;
      try {
        exchange.post(encode(Cancel{id}), "taking a request back");
      } catch (...) {  // too much waits to be sent: the store keeps the request
      }
    }

    Exchange& exchange;
    std::uint64_t id;
    async::Event over;
    std::optional<Response> answer{};  ///< nothing where none came in time
    bool taken_back = false;
  };

  bool open() const noexcept { return line_ != nullptr; }

  Lifeline::Handlers handlers() {
    Lifeline::Handlers handlers;
    handlers.on_message = [this](ToRank& message) {
      std::visit([this](auto& each) { on(each); }, message);
      return true;
    };
    handlers.on_lost = [this](const std::string& how) { lose(how); };
    return handlers;
  }

  void require_open(const std::string& doing) const {
    failure_->throw_if_failed(rank_);
    if (!open() || leaving_) {
      throw Error(Errc::closed, doing + ": " + (open() ? "this rank is leaving the job" : end_sentence_))
          .with_rank(rank_);
    }
  }

  void require_good(const std::optional<Response>& answer, const std::string& doing) const {
    if (!answer) {
      throw Error(Errc::timeout, doing + ": the deadline passed and the store does not answer").with_rank(rank_);
    }
    if (answer->status == Status::gave_up) {
      throw Error(Errc::timeout, doing + ": the deadline passed; " + printable(answer->text)).with_rank(rank_);
    }
    if (answer->status != Status::ok && answer->status != Status::missing) {
      throw Error(Errc::refused, doing + ": " + printable(answer->text)).with_rank(rank_);
    }
  }

  void post(Frame frame, const std::string& doing) {
    if (!line_->send(std::move(frame))) {
      throw Error(Errc::limit, doing + ": " + std::to_string(line_->waiting_bytes()) +
                                   " bytes wait to be sent to the store; await some requests first")
          .with_rank(rank_);
    }
  }

  void wake_all() noexcept {
    for (const auto& [id, question] : questions_) {
      question->over.set();
    }
    welcomed_.set();
    left_.set();
    told_.set();
  }

  async::Task<void> insist(Cause cause) {
    const async::Ready ready = co_await told_.wait(Deadline::after(last_word));
    if (ready == async::Ready::timed_out) {
      fail(cause);
    }
  }

  void on(Response& response) {
    const auto found = questions_.find(response.id);
    if (found != questions_.end()) {
      found->second->answer = std::move(response);
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
    for (const auto& [id, question] : questions_) {
      question->over.set();
    }
    welcomed_.set();
    told_.set();
  }

  /// The session ended, and this rank did not mean it.
  void lose(const std::string& how) {
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
  async::Event welcomed_;
  async::Event left_;
  async::Event told_;
  std::uint64_t last_id_ = 0;
  std::optional<Membership> membership_;
  std::map<std::uint64_t, Question*> questions_;
  bool leaving_ = false;
  bool acknowledged_ = false;
  std::string end_sentence_;
  async::Spawned reporting_;
  std::unique_ptr<Lifeline> line_;  ///< null once ended
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
