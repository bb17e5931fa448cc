#pragma once
/// @file
/// FormationState of a FormationServer: decides which workers are the next attempt's ranks; no sockets, no clocks.

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
#include "dtrain/rendezvous/formation/attempt_failures.hpp"
#include "dtrain/rendezvous/formation/formation_messages.hpp"
#include "dtrain/rendezvous/formation/formation_options.hpp"
#include "dtrain/rendezvous/formation/formation_workers.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Gives out the ranks of each attempt. The rules, each of which tests/unit/rendezvous/formation shows to be needed:
/// 1. An attempt forms when every rank of the last one has announced itself, is gone, or is excluded: its connection is
///    closed first, and it may come back as any other worker. A rank whose heartbeats come is in the program's own
///    code: it is excluded after wait_timeout at the earliest, and only if the others can form an attempt without it.
/// 2. The worker with the greatest progress is rank 0, and the source of the state. Ties keep their former order.
/// 3. A worker without rank 0's progress receives the state, and the progress with it (WorkerProgress).
/// 4. A receiver that has trained, and each receiver before the first commit, keeps its state until the source's is
///    complete (elastic/state_transfer.hpp).
/// 5. The job has finished when every rank of one attempt has said so before that attempt failed. Only the ranks of
///   that attempt have success.
/// 6. A job that may have committed a step forms only with a worker that has its state, and waits for one.
/// 7. Ranks of equal progress compare a digest of their states (elastic/state_transfer.hpp).
/// 8. An attempt ends for newcomers only once all of its ranks have called dtrain since the formation asked for it: a
///    rank that evaluates is not disturbed.
/// 9. An error that all ranks threw alike is not its first reporter's (attribute_errors()).
/// Threads: one. Memory: bounded by the number of connections and of ranks.
///
/// @tparam Sink opens the attempts and sends the messages, and does not call the state back:
/// - `open_attempt(attempt, world_size)`, in place of the last one; returns a Cause if it could not: the job then ends;
/// - `fail_attempt(cause)`: fails the one that was opened last, which the state counts as failed from now on;
/// - `send(connection, message)`, a ToWorker; `close(connection)`;
/// - `on_end(cause)`: the job has failed; null: it has finished;
/// - `warn(sentence)`: for the log.
template <class Sink>
class FormationState {
 public:
  using Instant = Deadline::Clock::time_point;

  /// @param sink outlives the state @param job random number of the job
  FormationState(Sink& sink, const FormationOptions& options, std::uint64_t job)
      : sink_(sink), options_(options), job_(job), failures_(sink, options) {}
  FormationState(const FormationState&) = delete;
  FormationState& operator=(const FormationState&) = delete;

  /// @name Events
  /// @{
  /// A worker announces itself on a connection that has proved the secret, for the first time or again.
  /// @returns why the worker is rejected; nullopt if it waits now, or was answered
  std::optional<Refused> announce(ConnectionId connection, const Announce& message, Instant now) {
    std::optional<Refused> refused = cause_ ? std::nullopt : workers_.refusal_of(message, job_, last_.needed.attempt);
    if (refused) return settle(now), refused;  // nobody waits for it any more
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
      fail(loss_of(*worker, message.error ? message.error->text : "it has left the attempt"), now);
    }
    const bool is_pending = worker->is_member() && failed_ && message.error && message.error->kind != CauseKind::lost;
    worker->thrown = is_pending ? message.error : std::nullopt;
    if (worker->is_member() && failed_ && message.error && !is_pending) failures_.on_explained(*worker, *message.error);
    worker->standing = Standing::waiting;
    worker->error.clear();
    worker->progress = message.progress;
    if (message.progress.attempt == last_.attempt && message.progress.steps > last_.source.steps) {
      failures_.on_commit(*worker, failed_);
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
    if (worker == nullptr || !worker->is_member() || message.attempt != last_.attempt || is_over_) return;
    failures_.on_commit(*worker, failed_);
    if (const std::optional<Cause> difference = failures_.on_weights(*worker, message.weights)) {
      if (!failed_) fail(*difference, now);
      end(*difference);
    }
    settle(now);
  }

  /// The program of a rank calls dtrain, after it was asked for it.
  void called(ConnectionId connection, std::uint64_t attempt, Instant now) {
    Worker* const worker = workers_.find(connection);
    if (worker == nullptr || !worker->is_member() || attempt != last_.attempt || !worker->is_asked) return;
    worker->has_called = true;
    settle(now);
  }

  /// The function of a rank has returned in an attempt.
  void finished(ConnectionId connection, const Finished& message, Instant now) {
    Worker* worker = workers_.find(connection);
    if (worker == nullptr || !worker->is_member() || message.attempt != last_.attempt || failed_ || is_over_) {
      return;  // the attempt has failed: the worker gets its cause as a rank
    }
    worker->has_finished = true;
    worker->end_digest = message.digest;
    if (std::all_of(members().begin(), members().end(), [](const Worker* each) { return each->has_finished; })) {
      const std::string difference = differing_states(members());
      if (!difference.empty()) sink_.warn(difference);
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
    } else if (!last_.is_complete && !failed_) {
      fail(loss_of(*worker, "its connection ended while the ranks were joining"), now);
    }
    settle(now);
  }

  /// A worker has sent nothing for the liveness time (CauseKind::lost), or ends with an error (exception).
  void lost(ConnectionId connection, CauseKind kind, const std::string& text, Instant now) {
    Worker* const worker = workers_.find(connection);
    if (worker == nullptr) return;
    worker->error = kind == CauseKind::exception ? text : worker->error;
    if (kind == CauseKind::exception && worker->standing != Standing::excluded)
      end_if(failures_.on_own_error(*worker, text));
    if (worker->is_member() && worker->standing == Standing::assigned && !failed_ && !is_over_) {
      fail({kind, worker->rank, worker->host, text}, now);
    }
    exclude(*worker, now);
    settle(now);
  }

  /// All ranks of the attempt have joined it.
  void joined(std::uint64_t attempt, Instant now) {
    if (attempt == last_.attempt) {
      last_.is_complete = true;
      failures_.limits().on_joined(failed_ ? std::nullopt : failed_at_, now);
      settle(now);
    }
  }

  /// The attempt has failed, by the first cause that its store received.
  void failed(std::uint64_t attempt, const Cause& cause, Instant now) {
    if (attempt != last_.attempt || failed_ || is_over_) return;
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
    if (exit_code == exit_code_usage && !failures_.history().has_committed()) {
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
    if (last_.attempt == 0 || failed_) end(cause);
    if (!is_over_) fail(cause, now);
    settle(now);
  }

  void on_time(Instant now) { settle(now); }
  /// @}

  /// When on_time() is due; nullopt if only another event changes the state.
  const std::optional<Instant>& next() const noexcept { return next_; }
  std::uint64_t attempt() const noexcept { return last_.attempt; }
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

  void fail(const Cause& cause, Instant now) {
    note_failure(cause, workers_.member(cause.rank), now);
    sink_.fail_attempt(cause);
  }

  void note_failure(const Cause& cause, Worker* origin, Instant now) {
    failed_ = true;
    failed_at_ = now;
    end_if(failures_.on_failure(cause, origin, members(), now));
  }

  void end_if(const std::optional<Cause>& cause) {
    if (cause) end(*cause);
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
    return cause_ ? ToWorker(Failure{*cause_}) : ToWorker(Finished{last_.attempt, is_member});
  }

  void settle(Instant now) {
    next_.reset();
    waits_.clear();
    if (is_over_) return;
    if (last_.attempt != 0 && !failed_) return resize(now);
    end_if(failures_.attribute(members(), now));
    if (is_over_) return;
    std::vector<Worker*> candidates = candidates_at(now);
    if (!wait_for_members(candidates, now) && may_form(candidates, now) &&
        (!failed_at_ || is_due(*failed_at_ + failures_.pause(), now))) {
      form(std::move(candidates), now);
    }
  }

  bool is_due(Instant at, Instant now) {
    if (at > now && (!next_ || at < *next_)) next_ = at;
    return at <= now;
  }

  /// Rule 1.
  bool wait_for_members(std::vector<Worker*> candidates, Instant now) {
    std::erase_if(candidates, [](const Worker* each) { return each->thrown.has_value(); });  // they may end
    const bool suffice = static_cast<int>(candidates.size()) >= options_.min_workers && has_state(candidates);
    bool waits = false;
    for (Worker* each : members()) {
      const bool is_pending = each->standing == Standing::waiting && each->thrown;  // a decision waits for another rank
      if (each->standing != Standing::assigned && !is_pending) continue;
      const bool is_alive = each->connection != 0;
      const Instant latest = is_alive ? *failed_at_ + options_.wait_timeout
                                      : std::max(each->since, *failed_at_) + options_.reconnect_timeout;
      if (!is_pending && is_due(latest, now) && (suffice || !is_alive)) {
        exclude(*each, now);
        settle(now);  // it may decide about errors
        return true;
      }
      if (!is_pending) {
        waits_ = format_text(
            "for rank {} on host {}, which has not left the failed attempt yet: {}",
            {each->rank, each->host,
             is_alive ? "it is in the program's own code, and its heartbeats come" : "its connection has ended"});
      }
      waits = true;
    }
    return waits;
  }

  std::vector<Worker*> candidates_at(Instant now) {
    std::vector<Worker*> found;
    has_barred_ = false;
    for (const std::unique_ptr<Worker>& each : workers_.all()) {
      if (each->standing != Standing::waiting) continue;
      if (const auto* const bar = failures_.limits().bar_of(*each, now)) {
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
    if (last_.attempt == 0 && count < options_.max_workers) {  // they start together
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
      Cause cause = failures_.history().cause().value_or(Cause{CauseKind::timeout, -1, {}, "no attempt was formed"});
      append_text(cause.text, "; the job waited {}", {waits_for()});
      end(cause);
    }
  }

  bool has_state(const std::vector<Worker*>& candidates) const {
    return std::any_of(
        candidates.begin(), candidates.end(),
        [least = least_with_state(members(), last_)](const Worker* each) { return each->progress >= least; });
  }

  void resize(Instant now) {
    const std::vector<Worker*> waiting = candidates_at(now);
    if (waiting.empty() || !last_.is_complete || !failures_.history().committed_here() ||
        static_cast<int>(members().size()) >= options_.max_workers) {
      workers_.ask_members(false);
      return;
    }
    const Worker* const first = *std::min_element(waiting.begin(), waiting.end(),
                                                  [](const Worker* a, const Worker* b) { return a->since < b->since; });
    const bool is_collected = is_due(first->since + options_.collect, now);
    if (!is_due(failures_.limits().next_resize().value_or(now), now) || !is_collected) return;
    for (const Worker* each : workers_.ask_members(true)) {
      sink_.send(each->connection, CallRequest{last_.attempt});
    }
    for (const Worker* each : members()) {
      if (each->has_called || each->connection == 0) continue;
      waits_ = format_text(
          "for a call of dtrain by rank {} on host {}, which is in the program's own code: new workers "
          "that become ranks then: {}",
          {each->rank, each->host, waiting.size()});
      return;
    }
    failures_.limits().on_resize(now);
    fail({CauseKind::resized, -1, {}, format_text("workers that wait to become ranks: {}", {waiting.size()})}, now);
    settle(now);
  }

  void form(std::vector<Worker*> candidates, Instant now) {
    last_.needed = least_with_state(members(), last_);
    const Instant long_ago = now - 2 * options_.rejoin_timeout;
    workers_.set_members(next_ranks(std::move(candidates), options_.max_workers), last_.needed.attempt, long_ago);
    last_.source = members().front()->progress;
    ++last_.attempt;
    failed_ = last_.is_complete = false;
    failures_.on_attempt(last_.attempt, now);
    enough_since_ = waiting_since_ = std::nullopt;
    Assignment assignment{job_, last_.attempt, 0, static_cast<int>(members().size()), last_.source, 0};
    for (Worker* each : members()) {
      each->has_finished = each->is_asked = each->has_called = false;
      each->thrown.reset();
      each->is_newcomer = last_.source.has_trained() && !each->progress.has_trained();
      each->standing = Standing::assigned;
      each->attempt = last_.attempt;
      each->source = last_.source;
      assignment.receivers += each->progress == last_.source ? 0 : 1;
    }
    if (const std::optional<Cause> cause = sink_.open_attempt(last_.attempt, assignment.world_size)) {
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
  AttemptFailures<Sink> failures_;
  std::uint64_t announcements_ = 0;
  LastAttempt last_;
  bool failed_ = false;      ///< the last attempt
  bool has_barred_ = false;  ///< a worker waits that must not be a rank yet
  int running_workers_ = std::numeric_limits<int>::max();
  Instant last_start_{};
  bool is_over_ = false;
  std::optional<Cause> cause_;
  std::optional<Instant> failed_at_, enough_since_, waiting_since_, next_;
  std::string waits_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
