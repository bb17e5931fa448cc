#pragma once
/// @file
/// FormationState of a FormationServer: which workers are the next attempt's ranks; without sockets and clocks.
/// FormationOptions: sizes and waiting times of an elastic job, which formation_at() (launch/) sets; RemoteFormation
/// has its own.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/formation/formation_messages.hpp"
#include "dtrain/rendezvous/formation/formation_workers.hpp"
#include "dtrain/rendezvous/formation/newcomer_limits.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

struct FormationOptions {
  int min_workers = 1;  ///< an attempt with fewer workers does not form
  int max_workers = 1;  ///< further workers wait

  std::chrono::milliseconds first_formation{30000};    ///< for workers up to max_workers, once min_workers are there
  std::chrono::milliseconds rejoin_timeout{60000};     ///< for a rank to leave a failed attempt, and to join the next
  std::chrono::milliseconds reconnect_timeout{10000};  ///< for a rank whose connection has ended
  std::chrono::milliseconds wait_timeout{600000};      ///< for min_workers, or for a worker that has the state
  std::chrono::milliseconds collect{1000};             ///< from the first newcomer to the end of the attempt
  std::chrono::milliseconds least_resize_gap{1000};    ///< between two attempts that newcomers end (NewcomerLimits)
  std::chrono::seconds least_bar{1};     ///< for newcomers of a host, one of which broke an attempt before a commit
  std::chrono::seconds longest_bar{60};  ///< it doubles each time up to here
  int attempts_without_commit = 10;      ///< so many in a row end the job
};

/// Gives out the ranks of each attempt. The rules, each of which tests/unit/rendezvous/formation shows to be needed:
/// 1. An attempt forms when every rank of the last one has announced itself, is gone, or is excluded: its connection is
///    closed first, and it may come back as any other worker.
/// 2. The worker with the greatest progress is rank 0, and the source of the state. Ties keep their former order.
/// 3. A worker without rank 0's progress receives the state, and the progress with it (WorkerProgress).
/// 4. A receiver that has trained, and each receiver before the first commit, keeps its state until the source's is
///    complete (elastic/state_transfer.hpp).
/// 5. The job has finished when every rank of one attempt has said so before that attempt failed. Only the ranks of
///   that attempt have success.
/// 6. A job that may have committed a step forms only with a worker that has its state, and waits for one.
/// 7. Ranks of equal progress compare a digest of their states (elastic/state_transfer.hpp).
/// Threads: one. Memory: bounded by the number of connections and of ranks.
///
/// @tparam Sink opens the attempts and sends the messages, and does not call the state back:
/// - `open_attempt(attempt, world_size)`, in place of the last one; returns a Cause if it could not: the job then ends;
/// - `fail_attempt(cause)`: fails the one that was opened last, which the state counts as failed from now on;
/// - `send(connection, message)`, a ToWorker; `close(connection)`;
/// - `on_end(cause)`: the job has failed; null: it has finished.
template <class Sink>
class FormationState {
 public:
  using Instant = Deadline::Clock::time_point;

  /// @param sink outlives the state @param job random number of the job
  FormationState(Sink& sink, const FormationOptions& options, std::uint64_t job)
      : sink_(sink),
        options_(options),
        job_(job),
        limits_(options.least_resize_gap, options.least_bar, options.longest_bar),
        history_(options.attempts_without_commit) {}
  FormationState(const FormationState&) = delete;
  FormationState& operator=(const FormationState&) = delete;

  /// @name Events
  /// @{
  /// A worker announces itself on a connection that has proved the secret, for the first time or again.
  /// @returns why the worker is refused; nullopt if it waits now, or was answered
  std::optional<Refused> announce(ConnectionId connection, const Announce& message, Instant now) {
    std::optional<Refused> refused = cause_ ? std::nullopt : workers_.refusal_of(message, job_, needed_.attempt);
    if (refused) return refused;
    Worker* worker = workers_.find(message.worker);
    if (is_over_) {
      sink_.send(connection, end_of(worker));
      return std::nullopt;
    }
    const Worker* const owner = workers_.find(connection);
    if (owner != nullptr && owner != worker) {
      return Refused{"its connection is another worker's; end it", true};
    }
    if (worker == nullptr) worker = &workers_.add(message);
    if (worker->connection != connection) {
      close(*worker);
      worker->connection = connection;
    }
    if (worker->standing == Standing::assigned && worker->is_member() && !failed_) {
      fail(loss_of(*worker, "it has left the attempt"), now);
    }
    worker->standing = Standing::waiting;
    worker->error.clear();
    worker->progress = message.progress;
    if (message.progress.attempt == attempt_ && message.progress.steps > source_.steps) {
      note_commit(*worker);
    }
    worker->told_until = {};
    worker->since = now;
    worker->order = ++announcements_;
    settle(now);
    return std::nullopt;
  }

  /// A rank has committed its first step in an attempt.
  void committed(ConnectionId connection, const Committed& message, Instant now) {
    Worker* const worker = workers_.find(connection);
    if (worker == nullptr || !worker->is_member() || message.attempt != attempt_ || is_over_) return;
    note_commit(*worker);
    if (weights_.value_or(message.digest) != message.digest) {
      const Cause cause{CauseKind::disagreement, worker->rank, worker->host,
                        format_text("the weights of rank {} differ from another rank's after the first step of attempt "
                                    "{}, in which a worker received the state; give keep() all that a step writes",
                                    {worker->rank, attempt_})};
      if (!failed_) fail(cause, now);
      end(cause);
    }
    weights_ = message.digest;
    settle(now);
  }

  /// The function of a rank has returned in an attempt.
  void finished(ConnectionId connection, std::uint64_t attempt, Instant now) {
    Worker* worker = workers_.find(connection);
    if (worker == nullptr || !worker->is_member() || attempt != attempt_ || failed_ || is_over_) {
      return;  // the attempt has failed: the worker gets its cause as a rank
    }
    worker->has_finished = true;
    if (std::all_of(members().begin(), members().end(), [](const Worker* each) { return each->has_finished; })) {
      end({});
    }
    settle(now);
  }

  void disconnected(ConnectionId connection, Instant now) {
    Worker* worker = workers_.find(connection);
    if (worker == nullptr) return;
    worker->connection = 0;
    worker->since = now;
    if (!worker->is_member()) {
      worker->standing = Standing::excluded;
      workers_.forget_if_unknown(*worker);
    } else if (worker->standing == Standing::waiting) {
      worker->standing = Standing::assigned;  // expected again
    } else if (!is_complete_ && !failed_) {
      fail(loss_of(*worker, "its connection ended while the ranks were joining"), now);
    }
    settle(now);
  }

  /// A worker has sent nothing for the liveness time (CauseKind::lost), or ends with an error (exception).
  void lost(ConnectionId connection, CauseKind kind, const std::string& text, Instant now) {
    Worker* const worker = workers_.find(connection);
    if (worker == nullptr) return;
    worker->error = kind == CauseKind::exception ? text : worker->error;
    if (worker->is_member() && worker->standing == Standing::assigned && !failed_ && !is_over_) {
      fail({kind, worker->rank, worker->host, text}, now);
    }
    exclude(*worker, now);
    settle(now);
  }

  /// All ranks of the attempt have joined it.
  void joined(std::uint64_t attempt, Instant now) {
    if (attempt == attempt_) {
      is_complete_ = true;
      limits_.on_joined(failed_ ? std::nullopt : failed_at_, now);
      settle(now);
    }
  }

  /// The attempt has failed, by the first cause that its store received.
  void failed(std::uint64_t attempt, const Cause& cause, Instant now) {
    if (attempt != attempt_ || failed_ || is_over_) return;
    Worker* const origin = workers_.member(cause.rank);
    note_failure(cause, origin, now);
    if (origin != nullptr && cause.kind == CauseKind::lost && origin->standing == Standing::assigned) {
      exclude(*origin, now);
    }
    settle(now);
  }

  /// The process of a worker has ended, or certainly ends.
  /// @param exit_code 0 for a signal
  void process_ended(const std::string& host_id, std::int64_t process, int exit_code, const std::string& how,
                     Instant now) {
    Worker* const worker = workers_.find(host_id, process);
    const std::string error = workers_.error_of(host_id, process);
    const std::string text = error.empty() ? how : format_text("{}: {}", {how, error});
    if (exit_code == exit_code_usage && !history_.has_committed()) {
      end(worker == nullptr ? Cause{CauseKind::lost, -1, {}, text} : loss_of(*worker, text));
    }
    if (worker != nullptr) {
      close(*worker);
      worker->standing = Standing::gone;
      worker->error.clear();
      if (worker->is_member() && !failed_ && !is_over_) {
        fail(loss_of(*worker, text), now);
      }
      workers_.forget_if_unknown(*worker);
    }
    settle(now);
  }

  /// How many workers' processes run or will be started, announced workers included; before the first call: unlimited.
  /// @param last_start of a process, often in the future: the job waits for workers from then on
  void set_running_workers(int count, Instant now, Instant last_start = {}) {
    running_workers_ = count;
    last_start_ = last_start;
    settle(now);
  }

  /// The job ends, because its launcher was told to.
  void stop(const std::string& why, Instant now) {
    const Cause cause{CauseKind::stopped, -1, {}, why};
    if (attempt_ == 0 || failed_) end(cause);
    if (!is_over_) fail(cause, now);
    settle(now);
  }

  void on_time(Instant now) { settle(now); }
  /// @}

  /// When on_time() is due; nullopt if only another event changes the state.
  const std::optional<Instant>& next() const noexcept { return next_; }
  std::uint64_t attempt() const noexcept { return attempt_; }
  const FormationWorkers& workers() const noexcept { return workers_; }
  bool is_over() const noexcept { return is_over_; }
  /// Why the job has ended without success.
  const std::optional<Cause>& cause() const noexcept { return cause_; }
  /// The clause of what the formation waits for; empty if no formation is under way.
  const std::string& waits_for() const noexcept { return waits_; }

 private:
  const std::vector<Worker*>& members() const noexcept { return workers_.members(); }

  void close(Worker& worker) {
    if (worker.connection != 0) sink_.close(std::exchange(worker.connection, 0));
  }

  /// Does not wait for the worker any more. The worker may announce itself again.
  void exclude(Worker& worker, Instant now) {
    close(worker);
    worker.standing = Standing::excluded;
    worker.since = now;
    workers_.forget_if_unknown(worker);
  }

  void note_commit(Worker& worker) {
    history_.on_commit(failed_);
    if (std::exchange(worker.is_newcomer, false) && !failed_) limits_.on_success(worker.id.host_id);
  }

  void fail(const Cause& cause, Instant now) {
    note_failure(cause, workers_.member(cause.rank), now);
    sink_.fail_attempt(cause);
  }

  void note_failure(const Cause& cause, const Worker* origin, Instant now) {
    failed_ = true;
    failed_at_ = now;
    if (const std::optional<Cause> last = history_.on_failure(cause)) end(*last);
    if (origin != nullptr && origin->is_newcomer) {
      limits_.on_broken(origin->id.host_id, attempt_, cause, now);
    }
  }

  /// @param cause nothing: the job has finished
  void end(std::optional<Cause> cause) {
    if (std::exchange(is_over_, true)) return;
    cause_ = std::move(cause);
    sink_.on_end(cause_ ? &*cause_ : nullptr);
    for (const std::unique_ptr<Worker>& each : workers_.all()) {
      if (each->connection != 0) sink_.send(each->connection, end_of(each.get()));
    }
  }

  ToWorker end_of(const Worker* worker) const {
    const bool is_member = worker != nullptr && worker->is_member();
    return cause_ ? ToWorker(Failure{*cause_}) : ToWorker(Finished{attempt_, is_member});
  }

  void settle(Instant now) {
    next_.reset();
    waits_.clear();
    if (is_over_) return;
    if (attempt_ != 0 && !failed_) return resize(now);
    const bool waits = wait_for_members(now);
    std::vector<Worker*> candidates = candidates_at(now);
    if (!waits && may_form(candidates, now)) form(std::move(candidates), now);
  }

  bool is_due(Instant at, Instant now) {
    if (at > now && (!next_ || at < *next_)) next_ = at;
    return at <= now;
  }

  /// Rule 1.
  bool wait_for_members(Instant now) {
    bool waits = false;
    for (Worker* each : members()) {
      if (each->standing != Standing::assigned) continue;
      const bool is_late = is_due(*failed_at_ + options_.rejoin_timeout, now);
      if (is_late ||
          (each->connection == 0 && is_due(std::max(each->since, *failed_at_) + options_.reconnect_timeout, now))) {
        exclude(*each, now);
      } else {
        waits = true;
        waits_ = format_text("for rank {}, which has not left the failed attempt yet", {each->rank});
      }
    }
    return waits;
  }

  std::vector<Worker*> candidates_at(Instant now) {
    std::vector<Worker*> found;
    has_barred_ = false;
    for (const std::unique_ptr<Worker>& each : workers_.all()) {
      if (each->standing != Standing::waiting) continue;
      if (const auto* const bar = limits_.bar_of(*each, now)) {
        has_barred_ = !is_due(bar->until, now);
        if (std::exchange(each->told_until, bar->until) != bar->until) sink_.send(each->connection, bar->message(now));
      } else {
        found.push_back(each.get());
      }
    }
    return found;
  }

  bool may_form(const std::vector<Worker*>& candidates, Instant now) {
    const auto count = static_cast<int>(candidates.size());
    if (count < options_.min_workers) {
      enough_since_.reset();
      waits_ = format_text("for workers: {} {} here, and the job needs {}",
                           {count, count == 1 ? "is" : "are", options_.min_workers});
      return end_unless_somebody_comes(has_barred_ || workers_.connected() < running_workers_, now), false;
    }
    if (attempt_ == 0 && count < options_.max_workers) {  // they start together
      enough_since_ = enough_since_.value_or(now);
      waits_ = format_text("until {} workers are here", {options_.max_workers});
      return is_due(*enough_since_ + options_.first_formation, now);
    }
    if (!has_state(candidates)) {
      waits_ = "for a worker that has the state of the training: no worker that is here has it";
      return end_unless_somebody_comes(workers_.has_excluded(), now), false;
    }
    return true;
  }

  void end_unless_somebody_comes(bool may_come, Instant now) {
    waiting_since_ = std::max(waiting_since_.value_or(now), last_start_);
    if (!may_come || is_due(*waiting_since_ + options_.wait_timeout, now)) {
      Cause cause = history_.first_cause().value_or(Cause{CauseKind::timeout, -1, {}, "no attempt was formed"});
      append_text(cause.text, "; the job waited {}", {waits_for()});
      end(cause);
    }
  }

  /// Rule 6: the least progress with which a worker has the job's state after the last attempt. All ranks of an attempt
  /// take part in each step. So if one of its ranks is here and has not trained in it, that attempt committed no step.
  /// A worker whose progress sufficed to form that attempt then still has the job's state, even if the source had more.
  TrainingProgress least_with_state() const {
    const bool has_rank_before = std::any_of(members().begin(), members().end(), [this](const Worker* each) {
      return each->standing == Standing::waiting && each->progress.attempt < attempt_;
    });
    const bool is_staged = source_.steps == needed_.steps;  // a receiver keeps its state until the source's is whole
    if (has_rank_before) return needed_.has_trained() || is_staged ? needed_ : source_;
    return is_complete_ ? TrainingProgress{attempt_, source_.steps} : is_staged ? needed_ : source_;
  }

  bool has_state(const std::vector<Worker*>& candidates) const {
    return std::any_of(candidates.begin(), candidates.end(),
                       [least = least_with_state()](const Worker* each) { return each->progress >= least; });
  }

  void resize(Instant now) {
    const std::vector<Worker*> waiting = candidates_at(now);
    if (waiting.empty() || !is_complete_ || !history_.committed_here() ||
        static_cast<int>(members().size()) >= options_.max_workers) {
      return;
    }
    const Worker* const first = *std::min_element(waiting.begin(), waiting.end(),
                                                  [](const Worker* a, const Worker* b) { return a->since < b->since; });
    const bool is_collected = is_due(first->since + options_.collect, now);
    if (is_due(limits_.next_resize().value_or(now), now) && is_collected) {
      limits_.on_resize(now);
      fail({CauseKind::resized, -1, {}, format_text("workers that wait to become ranks: {}", {waiting.size()})}, now);
      settle(now);
    }
  }

  void form(std::vector<Worker*> candidates, Instant now) {
    needed_ = least_with_state();
    const Instant long_ago = now - 2 * options_.rejoin_timeout;  // this host's launcher has killed its excluded workers
    workers_.set_members(next_ranks(std::move(candidates), options_.max_workers), needed_.attempt, long_ago);
    source_ = members().front()->progress;
    ++attempt_;
    failed_ = is_complete_ = false;
    weights_.reset();
    history_.on_attempt();
    enough_since_ = waiting_since_ = std::nullopt;
    Assignment assignment{job_, attempt_, 0, static_cast<int>(members().size()), source_, 0};
    for (Worker* each : members()) {
      each->has_finished = false;
      each->is_newcomer = source_.has_trained() && !each->progress.has_trained();
      each->standing = Standing::assigned;
      each->attempt = attempt_;
      each->source = source_;
      assignment.receivers += each->progress == source_ ? 0 : 1;
    }
    if (const std::optional<Cause> cause = sink_.open_attempt(attempt_, assignment.world_size)) {
      failed_ = true;
      return end(*cause);
    }
    for (const Worker* each : members()) {
      assignment.rank = each->rank;
      sink_.send(each->connection, assignment);
    }
  }

  Sink& sink_;
  const FormationOptions options_;
  const std::uint64_t job_;
  FormationWorkers workers_;
  NewcomerLimits<> limits_;
  FailureHistory history_;
  std::uint64_t attempt_ = 0;
  std::uint64_t announcements_ = 0;
  TrainingProgress source_;               ///< of the last attempt
  TrainingProgress needed_;               ///< the least progress that sufficed to form the last attempt
  std::optional<std::uint64_t> weights_;  ///< digest after the last attempt's first step
  bool failed_ = false;                   ///< the last attempt
  bool is_complete_ = false;              ///< all ranks have joined the last attempt
  bool has_barred_ = false;               ///< a worker waits that must not be a rank yet
  int running_workers_ = std::numeric_limits<int>::max();
  Instant last_start_{};
  bool is_over_ = false;
  std::optional<Cause> cause_;
  std::optional<Instant> failed_at_, enough_since_, waiting_since_, next_;
  std::string waits_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
