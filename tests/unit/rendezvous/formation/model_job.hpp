#pragma once
/// @file
/// ModelJob: an elastic job of model workers around a FormationState, under a seeded scheduler that kills, freezes and
/// delays; checks after every event that no committed step is lost, repeated or different on two workers.
///
/// A model worker keeps its state as a chain of hashes, one for each committed step, of the step and of the ranks that
/// took part. So two states are equal exactly if their histories are. The data plane may complete a step on any subset
/// of the ranks once all have arrived, also after the attempt has failed; a rank may unwind at any time after that.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/rendezvous/formation/formation_state.hpp"

namespace formation_model {

namespace rendezvous = dtrain::rendezvous;
using rendezvous::ConnectionId;
using Instant = dtrain::Deadline::Clock::time_point;

/// Why a schedule is wrong; null: it is not.
using Problem = const char*;

struct ModelOptions {
  bool breaks_connections = true;
  bool has_strangers = true;
};

class ModelJob {
 public:
  static constexpr int steps = 5;
  static constexpr int most_workers = 10;
  static constexpr int most_attempts = 64;

  enum class Outcome : std::uint8_t { finished = 1, ended, all_dead, wrong };

  explicit ModelJob(std::uint64_t seed, const ModelOptions& model = {})
      : random_(seed * 0x9e3779b97f4a7c15u + 1), model_(model), state_(*this, options_of_seed(), job) {
    for (int i = 0; i < first_workers_; ++i) {
      add_worker();
    }
    kills_ = below(5);
    joins_ = below(4);
    freezes_ = below(2);
    slow_ = below(2);
    breaks_ = model.breaks_connections ? below(2) : 0;
    strangers_ = model.has_strangers ? below(2) : 0;
  }

  Outcome run() {
    for (int turn = 0; problem_ == nullptr; ++turn) {
      if (turn > 20000) {
        problem_ = "the schedule does not end";
        break;
      }
      if (alive() == 0) {
        return Outcome::all_dead;
      }
      if (all_have_left()) {
        check_end();
        return problem_ != nullptr ? Outcome::wrong : has_ended_ ? Outcome::ended : Outcome::finished;
      }
      tell_who_runs();
      if (!disturb() && !act() && !let_time_pass()) {
        problem_ = "nothing can happen any more: the job hangs";
      }
    }
    return Outcome::wrong;
  }

  Problem problem() const noexcept { return problem_; }
  int attempts() const noexcept { return static_cast<int>(state_.attempt()); }
  int formed_with_survivor_behind() const noexcept { return survivors_behind_; }
  int resizes() const noexcept { return resizes_; }
  int bars() const noexcept { return bars_; }

 private:
  friend rendezvous::FormationState<ModelJob>;
  friend rendezvous::AttemptFailures<ModelJob>;
  static constexpr std::uint64_t job = 77;

  enum class Phase : std::uint8_t { away = 1, waiting, joining, receiving, training, writing, ending, left, dead };
  enum class Kind : std::uint8_t {
    announce = 1,
    committed,
    called,
    finished,
    end,
    assignment,
    call_request,
    failure,
    close
  };

  struct Message {
    Kind kind{};
    ConnectionId connection = 0;
    std::uint64_t attempt = 0;
    bool is_member = false;
    rendezvous::TrainingProgress progress{};
    rendezvous::Assignment assignment{};
  };

  /// Messages of one direction, in order.
  struct Queue {
    std::array<Message, 16> messages{};
    unsigned first = 0;
    unsigned count = 0;

    bool empty() const noexcept { return count == 0; }
    Message& add() {
      Message& added = messages[(first + count++) % messages.size()];
      added = Message{};
      return added;
    }
    Message take() {
      const Message taken = messages[first];
      first = (first + 1) % static_cast<unsigned>(messages.size());
      --count;
      return taken;
    }
  };

  struct ModelWorker {
    Phase phase = Phase::away;
    std::int64_t process = 0;
    ConnectionId connection = 0;  ///< the worker's view; 0: it has to connect
    rendezvous::WorkerProgress progress;
    std::array<std::uint64_t, steps> history{};
    rendezvous::Assignment assignment{};
    bool is_torn = false;    ///< half of a state was received into it
    bool is_frozen = false;  ///< does nothing and sends nothing
    bool is_slow = false;    ///< does nothing for a long time, but is alive
    bool is_excluded = false;
    bool may_be_excluded = false;  ///< it was silent, or is known to be lost
    bool has_committed = false;    ///< in this attempt
    bool has_received = false;     ///< in this attempt
    bool is_asked = false;         ///< for its next call, in this attempt
    bool has_called = false;       ///< since the state has asked
    bool has_left_well = false;
    Instant broke_at{};  ///< the store saw the end of its connection, and nothing of it since
    bool is_broken = false;
    Queue to_store;
    Queue to_worker;

    bool is_alive() const noexcept { return phase != Phase::dead; }
    int length() const noexcept { return static_cast<int>(progress.step()); }
    std::uint64_t state() const noexcept { return length() == 0 ? 0 : history[static_cast<std::size_t>(length() - 1)]; }
  };

  struct Attempt {
    bool failed = false;    ///< its ranks know
    bool reported = false;  ///< FormationState knows
    int lost_rank = -1;     ///< of the report
    int size = 0;
    unsigned members = 0;
    unsigned joined = 0;
    int source = -1;
    rendezvous::TrainingProgress source_progress{};
    std::array<std::uint64_t, steps> source_history{};
    std::array<int, most_workers> worker_of_rank{};
    std::array<unsigned, steps> arrived{};
  };

  /// @name Random choices. xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators", 2016
  /// @{
  std::uint64_t next_random() noexcept {
    random_ ^= random_ >> 12;
    random_ ^= random_ << 25;
    random_ ^= random_ >> 27;
    return random_ * 0x2545f4914f6cdd1du;
  }
  int below(int bound) noexcept {
    return static_cast<int>(((next_random() >> 32) * static_cast<std::uint64_t>(bound)) >> 32);
  }
  bool one_in(int count) noexcept { return below(count) == 0; }
  /// @}

  rendezvous::FormationOptions options_of_seed() {
    rendezvous::FormationOptions options;
    first_workers_ = 2 + below(4);
    options.min_workers = 1 + below(3) / 2;
    options.max_workers = first_workers_ + below(2);
    return options_ = options;
  }

  int add_worker() {
    ModelWorker& added = workers_[static_cast<std::size_t>(count_)];
    added.process = 100 + count_;
    return count_++;
  }

  ModelWorker& worker(int index) { return workers_[static_cast<std::size_t>(index)]; }
  static unsigned bit(int index) noexcept { return 1u << index; }
  int alive() const {
    int number = 0;
    for (int i = 0; i < count_; ++i) {
      number += workers_[static_cast<std::size_t>(i)].is_alive() ? 1 : 0;
    }
    return number;
  }
  bool all_have_left() const {
    for (int i = 0; i < count_; ++i) {
      const Phase phase = workers_[static_cast<std::size_t>(i)].phase;
      if (phase != Phase::dead && phase != Phase::left) {
        return false;
      }
    }
    return true;
  }
  Attempt& attempt_of(const ModelWorker& of) { return attempts_[of.assignment.attempt]; }
  Attempt& last() { return attempts_[state_.attempt()]; }
  void require(bool holds, Problem problem) {
    if (!holds && problem_ == nullptr) {
      problem_ = problem;
    }
  }

  // ---- What the state does

  std::optional<dtrain::Cause> open_attempt(std::uint64_t number, int world_size) {
    require(number == opened_ + 1, "attempts are not numbered in order");
    require(number < most_attempts, "there are too many attempts");
    if (problem_ != nullptr) {
      return std::nullopt;
    }
    Attempt& before = attempts_[opened_];
    for (int i = 0; i < count_ && opened_ != 0; ++i) {  // rule 1
      ModelWorker& each = worker(i);
      const bool is_busy = (before.members & bit(i)) != 0 && (announced_ & bit(i)) == 0 && each.is_alive();
      const bool is_away = each.is_broken && now_ - std::max(each.broke_at, failed_at_) >= options_.reconnect_timeout;
      const bool is_excluded = each.is_excluded || each.may_be_excluded || is_away;
      was_excluded_[static_cast<std::size_t>(i)] =
          was_excluded_[static_cast<std::size_t>(i)] || (is_busy && is_excluded);
      each.is_excluded = each.is_excluded || (is_busy && is_excluded);
      require(!is_busy || is_excluded, "an attempt forms without a rank that may still have the state");
    }
    before.failed = true;
    opened_ = number;
    attempts_[number] = Attempt{};
    attempts_[number].size = world_size;
    require(world_size >= options_.min_workers && world_size <= options_.max_workers, "an attempt has a wrong size");
    return std::nullopt;
  }

  void fail_attempt(const dtrain::Cause& cause) {
    require(!last().reported, "an attempt fails twice");
    note_failure();
    last().failed = last().reported = true;
    if (cause.kind == dtrain::CauseKind::resized) {
      ++resizes_;
      require(!has_resized_ || now_ - resized_at_ >= options_.least_resize_gap, "newcomers end attempts too often");
      has_resized_ = true;
      resized_at_ = now_;
      for (int i = 0; i < count_; ++i) {
        const ModelWorker& each = worker(i);
        const bool can_be_asked = each.is_alive() && each.connection != 0 && !each.is_broken && !each.may_be_excluded;
        require((last().members & bit(i)) == 0 || !can_be_asked || each.has_called,
                "newcomers end an attempt while a rank is in its own code");
      }
    }
  }

  static int worker_of(ConnectionId connection) noexcept { return static_cast<int>(connection & 0xff); }

  void send(ConnectionId connection, const rendezvous::ToWorker& message) {
    std::visit([&](const auto& each) { sent(connection, each); }, message);
  }
  void sent(ConnectionId, const rendezvous::Refused&) {}
  void sent(ConnectionId, const rendezvous::OwnError&) { require(false, "a worker ends by an error that it has not"); }
  void sent(ConnectionId connection, const rendezvous::CallRequest& message) {
    require(message.attempt == opened_, "a rank is asked in another attempt");
    ModelWorker& to = worker(worker_of(connection));
    to.has_called = false;
    Message& sent = to.to_worker.add();
    sent.kind = Kind::call_request;
    sent.connection = connection;
    sent.attempt = message.attempt;
  }
  void sent(ConnectionId connection, const rendezvous::Barred& message) {
    const int index = worker_of(connection);
    require((announced_ & bit(index)) != 0, "a worker is barred that does not wait");
    require(!announced_progress_[static_cast<std::size_t>(index)].has_trained(), "a worker is barred that has a state");
    require(message.milliseconds != 0 && message.milliseconds <= options_.longest_bar / std::chrono::milliseconds(1),
            "a bar has a wrong length");
    ++bars_;
  }
  void sent(ConnectionId connection, const rendezvous::Assignment& message) {
    const int index = worker_of(connection);
    ModelWorker& to = worker(index);
    Attempt& attempt = attempts_[message.attempt];
    require((announced_ & bit(index)) != 0, "a worker that does not wait gets a rank");
    require(message.job == job && message.attempt == opened_ && message.world_size == attempt.size,
            "an assignment is of another attempt");
    require((attempt.members & bit(index)) == 0, "a worker has two ranks");
    announced_ &= ~bit(index);
    attempt.members |= bit(index);
    attempt.worker_of_rank[static_cast<std::size_t>(message.rank)] = index;
    if (message.rank == 0) {
      attempt.source = index;
      attempt.source_progress = announced_progress_[static_cast<std::size_t>(index)];
      attempt.source_history = to.history;
      require(!to.is_torn || !attempt.source_progress.has_trained(), "half a state is the source");
      require(has_committed_ ? attempt.source_progress.has_trained() : true, "a trained job starts from nothing");
      receivers_left_ = message.receivers;
    }
    const bool receives = announced_progress_[static_cast<std::size_t>(index)] != attempt.source_progress;
    require(message.source == attempt.source_progress, "the progress of the source is not rank 0's");
    receivers_left_ -= receives ? 1 : 0;
    require(message.rank + 1 != message.world_size || receivers_left_ == 0, "the number of receivers is wrong");
    survivors_behind_ += receives && announced_progress_[static_cast<std::size_t>(index)].has_trained() ? 1 : 0;
    Message& sent = to.to_worker.add();
    sent.kind = Kind::assignment;
    sent.connection = connection;
    sent.assignment = message;
  }

  void sent(ConnectionId connection, const rendezvous::Finished& message) {
    Message& sent = worker(worker_of(connection)).to_worker.add();
    sent.kind = Kind::finished;
    sent.connection = connection;
    sent.attempt = message.attempt;
    sent.is_member = message.is_member;
  }

  void sent(ConnectionId connection, const rendezvous::Failure&) {
    Message& sent = worker(worker_of(connection)).to_worker.add();
    sent.kind = Kind::failure;
    sent.connection = connection;
  }

  void close(ConnectionId connection) {
    const int index = worker_of(connection);
    ModelWorker& of = worker(index);
    if (index != announcing_) {  // else its own new connection takes the place
      const bool is_late = last().reported && now_ - failed_at_ >= options_.wait_timeout;
      require(!of.is_alive() || of.may_be_excluded || is_late, "a worker is excluded that is well and in time");
      of.is_excluded = true;
      was_excluded_[static_cast<std::size_t>(index)] = true;
      announced_ &= ~bit(index);
    }
    if (of.connection == connection && of.to_worker.count < of.to_worker.messages.size()) {
      Message& sent = of.to_worker.add();
      sent.kind = Kind::close;
      sent.connection = connection;
    }
  }

  void warn(const std::string&) {}

  void on_end(const dtrain::Cause* cause) {
    if (cause == nullptr) {
      for (int rank = 0; rank < last().size; ++rank) {
        const int index = last().worker_of_rank[static_cast<std::size_t>(rank)];
        require(worker(index).length() == steps, "the job has finished before all ranks have");
      }
      require(!last().reported, "an attempt that has failed finishes the job");
      return;
    }
    has_ended_ = true;
    const bool has_waited = now_ - failed_at_ >= options_.wait_timeout;
    if (has_waited) {
      return;
    }
    int able = 0;
    bool has_state = opened_ == 0;
    for (int i = 0; i < count_; ++i) {
      const ModelWorker& each = workers_[static_cast<std::size_t>(i)];
      able += each.is_alive() ? 1 : 0;
      // A survivor that was a rank when the last step was committed has the state, also if the source was a step ahead.
      const bool is_survivor = committed_in_ != 0 && !each.is_torn && !was_excluded_[static_cast<std::size_t>(i)] &&
                               each.progress.value().attempt >= committed_in_;
      has_state =
          has_state || (each.is_alive() && (last().members & bit(i)) != 0 && (is_survivor || has_source_state(each)));
    }
    require(able < options_.min_workers || !has_state || state_.attempt() >= 10,
            "the job ends although workers with its state live");
  }

  /// Whether the worker has the state of the last attempt's source, or one that follows it: by the state itself, not by
  /// the progress that the worker states.
  bool has_source_state(const ModelWorker& of) {
    const auto done = static_cast<std::size_t>(last().source_progress.steps);
    if (of.is_torn || of.length() < static_cast<int>(done) || done == 0) {
      return !of.is_torn && done == 0 && of.progress.value() >= last().source_progress;
    }
    return of.history[done - 1] == last().source_history[done - 1];
  }

  // ---- What happens to the workers

  bool disturb() {
    if (!one_in(12)) {
      return false;
    }
    const int which = below(7);
    const int index = one_in(3) ? count_ - 1 : below(count_);  // the newest often: it breaks what it has joined
    ModelWorker& of = worker(index);
    const bool is_in = of.is_alive() && of.phase != Phase::left;
    if (which == 0 && kills_ > 0 && is_in) {
      --kills_;
      kill(index);
    } else if (which == 1 && joins_ > 0 && count_ < most_workers) {
      add_worker();
      --joins_;
    } else if (which == 2 && freezes_ > 0 && is_in) {
      --freezes_;
      of.is_frozen = true;
    } else if (which == 3 && slow_ > 0 && is_in) {
      --slow_;
      of.is_slow = true;
    } else if (which == 4 && breaks_ > 0 && is_in && of.connection != 0) {
      --breaks_;
      break_connection(of);
    } else if (which == 5 && strangers_ > 0) {
      --strangers_;
      admit_stranger();
    } else {
      return false;
    }
    return true;
  }

  void kill(int index) {
    ModelWorker& of = worker(index);
    of.phase = Phase::dead;
    of.to_worker = Queue{};
  }

  void break_connection(ModelWorker& of) {
    Message& end = of.to_store.add();
    end.kind = Kind::end;
    end.connection = std::exchange(of.connection, 0);
    of.to_worker = Queue{};
  }

  /// A worker of another job, or unlike this one, disturbs nobody.
  void admit_stranger() {
    const bool had_failed = last().failed;
    const std::uint64_t attempt = state_.attempt();
    rendezvous::Announce announce = announce_of(worker(0));
    announce.worker = {"h0", 999, 999};
    const int how = opened_ == 0 ? 2 * below(2) : below(3);
    announce.job = how == 0 ? job + 1 : 0;
    announce.settings = how == 1 ? "kept=other\n" : announce.settings;
    announce.progress = how == 2 ? rendezvous::TrainingProgress{1, 3} : rendezvous::TrainingProgress{};
    if (state_.is_over()) {
      return;
    }
    require(state_.announce(0xff00ff, announce, now_).has_value(), "a stranger is taken in");
    require(last().failed == had_failed && state_.attempt() == attempt, "a stranger disturbs the job");
  }

  rendezvous::Announce announce_of(const ModelWorker& of) const {
    rendezvous::Announce announce;
    announce.worker = {of.process % 2 == 0 ? "h0" : "h1", of.process, static_cast<std::uint64_t>(of.process)};
    announce.host = "h";
    announce.settings = "kept=all\n";
    announce.job = of.assignment.job;
    announce.progress = of.progress.value();
    return announce;
  }

  /// One step of some worker, or of what concerns it. @returns false if there is none
  bool act() {
    const int first = below(count_);
    for (int i = 0; i < count_; ++i) {
      const int index = (first + i) % count_;
      const int which = below(4);
      for (int j = 0; j < 4; ++j) {
        if (act(index, (which + j) % 4)) {
          return true;
        }
      }
    }
    return false;
  }

  bool act(int index, int which) {
    ModelWorker& of = worker(index);
    switch (which) {
      case 0: return deliver_to_store(index);
      case 1: return deliver_to_worker(of);
      case 2: return report(index);
      default: return of.is_alive() && !of.is_frozen && !of.is_slow && step(index);
    }
  }

  /// What the store, the liveness and the launcher notice by and by.
  bool report(int index) {
    ModelWorker& of = worker(index);
    if (!of.is_alive() && (reported_dead_ & bit(index)) == 0) {
      reported_dead_ |= bit(index);
      announced_ &= ~bit(index);
      of.to_store = Queue{};
      note_failure();
      state_.process_ended(of.process % 2 == 0 ? "h0" : "h1", of.process, 0, "killed", now_);
      return true;
    }
    if (of.is_frozen && of.is_alive() && of.phase != Phase::left && !of.may_be_excluded && one_in(4)) {
      of.may_be_excluded = true;
      lose(of);
      if (of.connection != 0) {
        note_failure();
        state_.lost(of.connection, dtrain::CauseKind::lost, "silent", now_);
      }
      return true;
    }
    Attempt& attempt = last();
    if (attempt.failed && !attempt.reported) {
      attempt.reported = true;
      note_failure();
      state_.failed(state_.attempt(), {dtrain::CauseKind::lost, attempt.lost_rank, "h", "lost"}, now_);
      return true;
    }
    const unsigned all = attempt.members;
    if (opened_ != 0 && attempt.size != 0 && attempt.joined == all && (complete_ < opened_)) {
      complete_ = opened_;
      state_.joined(opened_, now_);
      return true;
    }
    return false;
  }

  void note_failure() {
    if (failed_attempt_ != opened_) {
      failed_attempt_ = opened_;
      failed_at_ = now_;
    }
  }

  /// The store of the last attempt loses the worker's session.
  void lose(const ModelWorker& of) {
    if (of.assignment.attempt == opened_ && opened_ != 0 && !last().failed &&
        (of.phase != Phase::waiting && of.phase != Phase::left)) {
      last().failed = true;
      last().lost_rank = of.assignment.rank;
    }
  }

  /// The launcher knows which processes run, and how many more it will start.
  void tell_who_runs() {
    int running = joins_;
    for (int i = 0; i < count_; ++i) {
      running += (reported_dead_ & bit(i)) == 0 ? 1 : 0;
    }
    if (std::exchange(running_, running) != running) {
      state_.set_running_workers(running, now_);
    }
  }

  bool deliver_to_store(int index) {
    ModelWorker& of = worker(index);
    if (of.to_store.empty()) {
      return false;
    }
    const Message message = of.to_store.take();
    switch (message.kind) {
      case Kind::announce: {
        rendezvous::Announce announce = announce_of(of);
        announce.progress = message.progress;
        announced_ |= bit(index);
        announced_progress_[static_cast<std::size_t>(index)] = message.progress;
        of.is_broken = false;
        of.is_excluded = false;
        of.may_be_excluded = of.is_frozen;
        if (message.attempt == opened_ && opened_ != 0) {
          note_failure();
        }
        announcing_ = index;
        const bool is_refused = state_.announce(message.connection, announce, now_).has_value();
        announcing_ = -1;
        require(!is_refused, "a worker of the job is refused");
        break;
      }
      case Kind::committed: state_.committed(message.connection, {message.attempt}, now_); break;
      case Kind::called: state_.called(message.connection, message.attempt, now_); break;
      case Kind::finished: state_.finished(message.connection, {message.attempt}, now_); break;
      default:
        if (of.is_alive()) {
          of.is_broken = true;
          of.broke_at = now_;
        }
        note_failure();
        announced_ &= ~bit(index);
        state_.disconnected(message.connection, now_);
    }
    return true;
  }

  bool deliver_to_worker(ModelWorker& of) {
    if (of.to_worker.empty() || of.is_frozen || of.is_slow || !of.is_alive()) {
      return false;
    }
    const Message message = of.to_worker.take();
    if (message.connection != of.connection) {
      return true;
    }
    switch (message.kind) {
      case Kind::assignment:
        require(of.phase == Phase::waiting, "a worker gets a rank that it does not wait for");
        of.assignment = message.assignment;
        of.has_committed = of.is_asked = of.has_called = false;
        of.has_received = false;
        of.phase = Phase::joining;
        break;
      case Kind::finished:
        require(!message.is_member || of.length() == steps, "a worker succeeds that has not all steps");
        of.has_left_well = message.is_member;
        of.phase = message.is_member || of.phase == Phase::ending ? Phase::left : Phase::dead;
        if (of.phase == Phase::dead) {
          reported_dead_ |= bit(static_cast<int>(&of - workers_.data()));
        }
        break;
      case Kind::failure: of.phase = Phase::left; break;
      case Kind::call_request: of.is_asked = message.attempt == of.assignment.attempt; break;
      default:  // closed: it connects and announces itself again
        of.connection = 0;
        if (of.phase == Phase::waiting) {
          of.phase = Phase::away;
        }
    }
    return true;
  }

  /// One step of the worker itself.
  bool step(int index) {
    ModelWorker& of = worker(index);
    Attempt& attempt = attempt_of(of);
    const bool unwinds = attempt.failed && one_in(3);
    switch (of.phase) {
      case Phase::away: announce(index); return true;
      case Phase::waiting:
        if (of.connection == 0) {
          announce(index);
          return true;
        }
        return false;
      case Phase::joining:
        if (attempt.failed) {
          of.phase = Phase::away;
        } else {
          attempt.joined |= bit(index);
          of.phase = Phase::receiving;
        }
        return true;
      case Phase::receiving: return receive(index, of, attempt);
      case Phase::training: {
        if (unwinds) {
          of.phase = Phase::away;
          return true;
        }
        if (of.length() == steps) {
          send(of, Kind::finished);
          of.phase = Phase::ending;
          return true;
        }
        unsigned& arrived = attempt.arrived[static_cast<std::size_t>(of.length())];
        if ((arrived & bit(index)) == 0) {
          arrived |= bit(index);
          if (std::exchange(of.is_asked, false)) {
            of.has_called = true;
            send(of, Kind::called);
          }
          return true;
        }
        if ((arrived & attempt.members) == attempt.members && (attempt.members != 0)) {
          of.phase = Phase::writing;
          return true;
        }
        if (attempt.failed) {
          of.phase = Phase::away;
          return true;
        }
        return false;
      }
      case Phase::writing: commit(index, of, attempt); return true;
      case Phase::ending:
        if (attempt.failed) {
          of.phase = Phase::away;
          return true;
        }
        if (of.connection == 0) {  // it cannot know whether the store knows: it gives the attempt up
          of.phase = Phase::away;
          return true;
        }
        return false;
      default: return false;
    }
  }

  void connect(int index) { worker(index).connection = (++connections_ << 8) | static_cast<unsigned>(index); }

  void announce(int index) {
    ModelWorker& of = worker(index);
    if (of.connection == 0) {
      connect(index);
    }
    of.phase = Phase::waiting;
    Message& sent = of.to_store.add();
    sent.kind = Kind::announce;
    sent.connection = of.connection;
    sent.attempt = of.assignment.attempt;
    sent.progress = of.progress.value();
  }

  void send(ModelWorker& of, Kind kind) {
    if (of.connection != 0) {
      Message& sent = of.to_store.add();
      sent.kind = kind;
      sent.connection = of.connection;
      sent.attempt = of.assignment.attempt;
    }
  }

  bool receive(int index, ModelWorker& of, Attempt& attempt) {
    const bool has_opened = (attempt.joined & attempt.members) == attempt.members;  // the group, when all have joined
    if (attempt.failed && (!has_opened || one_in(2))) {
      of.phase = Phase::away;
      return true;
    }
    if (!has_opened) {
      return false;
    }
    if (of.progress.value() != attempt.source_progress && !of.has_received) {
      if (!worker(attempt.source).is_alive()) {
        attempt.failed = true;
        return true;
      }
      if (!of.progress.value().has_trained() && attempt.source_progress.steps != 0 && !of.is_torn) {
        of.is_torn = true;  // in place; the other half in a later turn
        return true;
      }
      const int source_length = static_cast<int>(attempt.source_progress.steps);
      const bool extends = of.is_torn || of.length() == 0 ||
                           (source_length >= of.length() &&
                            attempt.source_history[static_cast<std::size_t>(of.length() - 1)] == of.state());
      require(extends || was_excluded_[static_cast<std::size_t>(index)], "a commit of a survivor is taken back");
      of.history = attempt.source_history;
      of.is_torn = false;
      of.progress.received(of.assignment.source);
      require(of.length() == source_length, "the progress does not belong to the state");
      of.has_received = true;
      return true;
    }
    require(!of.is_torn, "a worker trains with half a state");
    was_excluded_[static_cast<std::size_t>(index)] = of.is_excluded;  // by the state, and it does not know it yet
    of.phase = Phase::training;
    of.progress.began(of.assignment.attempt);
    return true;
  }

  void commit(int index, ModelWorker& of, Attempt& attempt) {
    const auto done = static_cast<std::size_t>(of.length());
    std::uint64_t hash = of.state() * 0x9e3779b97f4a7c15u + done + 1;
    hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9u + attempt.members;
    of.history[done] = hash ^ (hash >> 32);
    of.progress.committed();
    has_committed_ = true;
    committed_in_ = std::max(committed_in_, of.assignment.attempt);
    if (!std::exchange(of.has_committed, true)) {
      send(of, Kind::committed);
    }
    of.phase = Phase::training;
    static_cast<void>(index);
  }

  /// Nothing else can happen, or some time passes all the same.
  bool let_time_pass() {
    int stopped = 0;
    for (int i = 0; i < count_; ++i) {
      const ModelWorker& each = worker(i);
      stopped += each.is_alive() && (each.is_frozen || each.is_slow) ? 1 : 0;
    }
    const bool may_wait = state_.next().has_value();
    if (stopped > 0 && (!may_wait || one_in(2))) {
      for (int i = 0; i < count_; ++i) {
        ModelWorker& each = worker(i);
        if (each.is_alive() && (each.is_frozen || each.is_slow)) {
          each.is_frozen = each.is_slow = false;
          return true;
        }
      }
    }
    if (may_wait) {
      require(*state_.next() > now_, "the state is due and does nothing");
      now_ = *state_.next();
      state_.on_time(now_);
      return true;
    }
    return false;
  }

  void check_end() {
    if (has_ended_) {
      return;
    }
    std::uint64_t state = 0;
    bool is_first = true;
    for (int i = 0; i < count_; ++i) {
      const ModelWorker& each = worker(i);
      if (each.phase != Phase::left) {
        continue;
      }
      require(each.has_left_well && each.length() == steps, "a worker has left without all steps");
      require(is_first || each.state() == state, "two workers have different states at the end");
      state = each.state();
      is_first = false;
    }
  }

  std::uint64_t random_;
  ModelOptions model_;
  int first_workers_ = 0;
  rendezvous::FormationOptions options_;
  Instant now_{};
  int count_ = 0;
  int kills_ = 0;
  int joins_ = 0;
  int freezes_ = 0;
  int slow_ = 0;
  int breaks_ = 0;
  int strangers_ = 0;
  std::array<ModelWorker, most_workers> workers_{};
  std::array<Attempt, most_attempts> attempts_{};
  std::array<rendezvous::TrainingProgress, most_workers> announced_progress_{};
  std::array<bool, most_workers> was_excluded_{};
  unsigned announced_ = 0;  ///< workers that the state knows to wait
  unsigned reported_dead_ = 0;
  int running_ = 0;  ///< as the state knows it
  int announcing_ = -1;
  int receivers_left_ = 0;
  int survivors_behind_ = 0;
  int resizes_ = 0;
  int bars_ = 0;  ///< as workers were told
  bool has_resized_ = false;
  bool has_committed_ = false;
  bool has_ended_ = false;
  Instant resized_at_{};
  Instant failed_at_{};
  std::uint64_t failed_attempt_ = 0;
  std::uint64_t opened_ = 0;
  std::uint64_t committed_in_ = 0;  ///< the last attempt in which a step was committed
  std::uint64_t complete_ = 0;
  std::uint64_t connections_ = 0;
  Problem problem_ = nullptr;
  rendezvous::FormationState<ModelJob> state_;
};

}  // namespace formation_model
