#include "dtrain/rendezvous/formation/formation_state.hpp"

#include "unit/rendezvous/prelude.hpp"

namespace {

/// A formation whose worker i has the connection i + 1; time passes when a test says so.
class Formation {
 public:
  explicit Formation(FormationOptions options) : state(*this, options, 7) {}
  /// @param here the workers that announce themselves at once
  Formation(int least, int most, std::initializer_list<int> here = {}) : Formation(sizes(least, most)) {
    for (const int worker : here)
      announce(worker);
  }

  static FormationOptions sizes(int least, int most) {
    FormationOptions options;
    options.min_workers = least;
    options.max_workers = most;
    options.least_pause = 0ms;
    return options;
  }

  std::optional<Refused> announce(int worker, TrainingProgress progress = {}, const std::string& host = "a",
                                  std::uint64_t of_job = 0, std::optional<Cause> error = {}) {
    Announce announce;
    announce.error = std::move(error);
    announce.job = of_job;
    announce.worker = {host, worker, static_cast<std::uint64_t>(worker)};
    announce.host = host;
    announce.settings = "kept=all\n";
    announce.progress = progress;
    const std::optional<Refused> refused = state.announce(connection(worker), announce, now);
    call();
    return refused;
  }
  /// A worker announces itself, with progress, after its function threw.
  void announce_error(int worker, TrainingProgress progress, CauseKind kind, const std::string& text, int rank = -1) {
    announce(worker, progress, "a", 0, Cause{kind, rank, {}, text});
  }
  void pass(std::chrono::milliseconds time) {
    now += time;
    state.on_time(now);
    call();
  }
  /// The ranks that were asked call dtrain, unless they are in their own code.
  void call() {
    for (const ConnectionId each : std::exchange(asked, {})) {
      if (in_own_code.contains(static_cast<int>(each) - 1)) {
        asked.push_back(each);
      } else {
        state.called(each, state.attempt(), now);
      }
    }
  }
  /// All ranks join, and one of them commits a step.
  void train(int worker) {
    state.joined(state.attempt(), now);
    state.committed(connection(worker), {state.attempt()}, now);
    call();
  }
  /// Worker 0 commits a step, and announces itself for an attempt with these newcomers.
  void admit(std::initializer_list<int> newcomers, const std::string& host = "a") {
    pass(30s);
    train(0);
    for (const int worker : newcomers)
      announce(worker, {}, host);
    pass(1s);
    announce(0, {1, 1});
  }
  void lose(int worker) { state.process_ended("a", worker, 0, "killed by signal 9", now); }
  void fail(CauseKind kind, int rank, const std::string& text) {
    state.failed(state.attempt(), {kind, rank, "a", text}, now);
  }
  static ConnectionId connection(int worker) { return static_cast<ConnectionId>(worker) + 1; }

  FormationState<Formation>::Instant now{};
  std::vector<int> order;  ///< of the last attempt: the workers by rank
  TrainingProgress source;
  std::vector<ConnectionId> closed;
  std::optional<Cause> cannot_open;
  std::optional<Cause> failed_by;  ///< of the last attempt, by the state
  std::optional<Cause> end;
  bool has_finished = false;
  std::map<ConnectionId, std::string> told;  ///< why the job has ended
  std::map<ConnectionId, bool> finished;     ///< and whether as a rank of the last attempt
  std::map<int, Barred> barred;              ///< by worker
  std::vector<ConnectionId> asked;           ///< for their next call of dtrain
  std::set<int> in_own_code;                 ///< workers that do not call dtrain
  std::set<int> own_errors;                  ///< workers whose error is their own
  std::map<int, std::string> rejected;       ///< by worker
  std::vector<std::string> warnings;
  FormationState<Formation> state;

 private:
  friend FormationState<Formation>;
  friend AttemptFailures<Formation>;

  std::optional<Cause> open_attempt(std::uint64_t, int) {
    order.clear();
    asked.clear();
    failed_by.reset();
    return cannot_open;
  }
  void fail_attempt(const Cause& cause) { failed_by = cause; }
  void send(ConnectionId to, const ToWorker& message) {
    if (const Assignment* assignment = std::get_if<Assignment>(&message)) {
      REQUIRE(assignment->rank == static_cast<int>(order.size()));
      order.push_back(static_cast<int>(to) - 1);
      source = assignment->source;
    } else if (const Finished* end_of_job = std::get_if<Finished>(&message)) {
      finished[to] = end_of_job->is_member;
    } else if (const Barred* bar = std::get_if<Barred>(&message)) {
      barred[static_cast<int>(to) - 1] = *bar;
    } else if (std::get_if<CallRequest>(&message) != nullptr) {
      asked.push_back(to);
    } else if (std::get_if<OwnError>(&message) != nullptr) {
      own_errors.insert(static_cast<int>(to) - 1);
    } else if (const Refused* refused = std::get_if<Refused>(&message)) {
      rejected[static_cast<int>(to) - 1] = refused->sentence;
    } else {
      told[to] = std::get<Failure>(message).cause.text;
    }
  }
  void close(ConnectionId connection) { closed.push_back(connection); }
  void warn(const std::string& sentence) { warnings.push_back(sentence); }
  void on_end(const Cause* cause) {
    end = cause == nullptr ? std::nullopt : std::optional<Cause>(*cause);
    has_finished = cause == nullptr;
  }
};

using Order = std::vector<int>;

}  // namespace

TEST_CASE("the first attempt has all workers, or after 30 s those that are there") {
  Formation all(2, 3, {0, 1, 2});
  CHECK(all.order == Order{0, 1, 2});

  Formation some(2, 3, {0});
  some.pass(40s);
  some.announce(1);
  some.pass(29s);
  CHECK(some.state.attempt() == 0);
  some.pass(1s);
  CHECK(some.order == Order{0, 1});
}

TEST_CASE("a job that is stopped before its first attempt, between two or in one ends for all of its workers") {
  const auto check_stopped = [](Formation& job) {
    job.state.stop("SIGTERM came", job.now);
    REQUIRE(job.end);
    CHECK(job.end->kind == CauseKind::stopped);
    CHECK_CONTAINS(job.told[Formation::connection(0)], "SIGTERM came");
    job.announce(7);  // a late one
    CHECK_CONTAINS(job.told[Formation::connection(7)], "SIGTERM came");
  };
  Formation before(2, 2, {0});
  check_stopped(before);
  CHECK(before.order.empty());

  Formation between(2, 2, {0, 1});
  between.train(0);
  between.lose(1);
  REQUIRE(between.failed_by);
  CHECK(between.failed_by->kind == CauseKind::lost);
  check_stopped(between);
  CHECK(between.state.attempt() == 1);

  Formation within(2, 2, {0, 1});
  check_stopped(within);
  REQUIRE(within.failed_by);
  CHECK(within.failed_by->kind == CauseKind::stopped);
}

TEST_CASE("a formation to which any number of workers may come says what it waits for, and ends") {
  FormationOptions sizes = Formation::sizes(1, 2);
  sizes.wait_timeout = 60s;
  Formation job(sizes);
  job.state.set_running_workers(std::numeric_limits<int>::max(), job.now);
  CHECK(job.state.waits_for() == "for workers: 0 are here, and the job needs 1");
  job.pass(60s);
  REQUIRE(job.end);
  CHECK_CONTAINS(job.end->text, "no attempt was formed; the job waited for workers");
}

TEST_CASE("ranks of one host are neighbours behind rank 0") {
  Formation job(4, 4);
  job.announce(0, {}, "a");
  job.announce(1, {}, "b");
  job.announce(2, {}, "a");
  job.announce(3, {}, "b");
  CHECK(job.order == Order{0, 2, 1, 3});
}

TEST_CASE("the greatest progress is rank 0, and the others keep their order") {
  Formation job(3, 4, {0, 1, 2, 3});
  job.train(0);
  job.lose(0);
  job.announce(3, {1, 4});
  job.announce(1, {1, 4});
  job.announce(2, {1, 5});
  CHECK(job.order == Order{2, 1, 3});
  CHECK(job.source == TrainingProgress{1, 5});
}

TEST_CASE("ranks that have loaded a checkpoint of fewer steps have the job's state, and more progress than before") {
  Formation job(2, 3, {0, 1, 2});
  job.train(0);
  job.lose(0);
  job.announce(1, {1, 9, 0, true});
  job.announce(2, {1, 9, 4, true});  // goes on at step 5
  CHECK(job.order == Order{2, 1});
  CHECK(job.source == TrainingProgress{1, 9, 4, true});
  job.train(0);
  job.fail(CauseKind::timeout, 0, "no answer");
  job.announce(1, {2, 9, 5, true});
  job.announce(2, {2, 9, 5, true});
  CHECK(job.order == Order{2, 1});
}

TEST_CASE("the progress of a worker counts a step that is trained again as one more") {
  WorkerProgress progress;
  progress.resumed(7);
  CHECK(progress.step() == 7);
  progress.committed();
  progress.resumed(6);
  CHECK(progress.step() == 6);
  CHECK(progress.value() == TrainingProgress{0, 8, 2});
  progress.committed();
  progress.resumed(20);
  CHECK(progress.step() == 20);
  CHECK(progress.value() == TrainingProgress{0, 22, 2});
  progress.resumed(5);
  CHECK(progress.step() == 5);
  CHECK(progress.value() == TrainingProgress{0, 22, 17});
}

TEST_CASE("weights that differ after an attempt's first step end the job, which names keep()") {
  Formation job(2, 2, {0, 1});
  const auto weights = [](std::uint64_t digest, double sum) { return WeightsSummary{digest, 1e-3, {sum}}; };
  job.state.joined(1, job.now);
  job.state.committed(Formation::connection(0), {1, weights(5, 1)}, job.now);
  job.state.committed(Formation::connection(0), {0, weights(6, 2)}, job.now);  // of another attempt
  CHECK_FALSE(job.end);
  job.state.committed(Formation::connection(1), {1, weights(6, 1.01)}, job.now);
  REQUIRE(job.end);
  CHECK(job.end->kind == CauseKind::disagreement);
  CHECK_CONTAINS(job.end->text, "the weights of rank 1 on host a differ", "give keep() all that a step writes");
  REQUIRE(job.failed_by);  // its ranks learn it
  CHECK(job.failed_by->text == job.end->text);
}

TEST_CASE("weights that differ by rounding after an attempt's first step are warned of once, and the job goes on") {
  Formation job(2, 2, {0, 1});
  const auto commit = [&](int worker, std::uint64_t digest, double sum) {
    job.state.committed(Formation::connection(worker), {job.state.attempt(), WeightsSummary{digest, 1e-3, {sum}}},
                        job.now);
  };
  job.state.joined(1, job.now);
  commit(0, 5, 1);
  commit(1, 6, 1.0005);
  CHECK_FALSE(job.failed_by);
  REQUIRE(job.warnings.size() == 1);
  CHECK_CONTAINS(job.warnings[0], "the weights of rank 1 on host a differ", "by no more than rounding", "processors");
  job.lose(1);
  job.announce(0, {1, 1});
  job.announce(2);
  commit(0, 7, 2);
  commit(2, 8, 2.0005);
  CHECK(job.warnings.size() == 1);
  CHECK_FALSE(job.end);
}

TEST_CASE("sums of weights tell rounding from other differences, where they are no numbers too") {
  const double infinite = std::numeric_limits<double>::infinity();
  const WeightsSummary one{1, 0.5, {1, 2}};
  CHECK(differs_by_rounding(one, {2, 0.5, {1, 2}}));
  CHECK(differs_by_rounding(one, {2, 0.5, {1.7, 2.7}}));
  CHECK_FALSE(differs_by_rounding(one, {2, 0.5, {1.8, 2.8}}));
  CHECK_FALSE(differs_by_rounding(one, {2, 0.5, {1, infinite}}));
  CHECK(differs_by_rounding({1, 0, {infinite}}, {2, 0, {-infinite}}));
}

TEST_CASE("a rank whose heartbeats come is waited for, and left out after DTRAIN_TIMEOUT_SECONDS") {
  Formation job(1, 3, {0, 1, 2});
  job.train(0);
  job.lose(2);
  job.announce(0, {1, 1});
  job.pass(599s);
  CHECK(job.state.attempt() == 1);
  CHECK(job.state.waits_for() ==
        "for rank 1 on host a, which has not left the failed attempt yet: it is in the program's own code, and its "
        "heartbeats come");
  job.pass(1s);
  CHECK(job.order == Order{0});
  CHECK(job.closed == std::vector<ConnectionId>{Formation::connection(2), Formation::connection(1)});
  job.train(0);
  job.announce(1, {1, 2});  // whatever it had done, it is a newcomer
  job.pass(1s);
  job.announce(0, {2, 5});
  CHECK(job.order == Order{0, 1});
  CHECK(job.source == TrainingProgress{2, 5});
}

TEST_CASE("ranks whose heartbeats come are waited for as long as no other worker has the state") {
  Formation job(1, 3, {0, 1, 2});
  job.train(0);
  job.lose(2);
  job.announce(3);  // its replacement
  job.pass(std::chrono::hours(5));
  CHECK(job.state.attempt() == 1);
  CHECK_FALSE(job.end);
  CHECK(job.closed == std::vector<ConnectionId>{Formation::connection(2)});
  job.announce(1, {1, 200});        // it has evaluated
  CHECK(job.order == Order{1, 3});  // rank 0 is late by then
  job.announce(0, {1, 200});
  job.train(1);
  job.pass(10s);
  CHECK(job.failed_by->kind == CauseKind::resized);
}

TEST_CASE("a rank whose heartbeats come is waited for as long as the others are too few") {
  Formation job(2, 3, {0, 1, 2});
  job.train(0);
  job.lose(2);
  job.announce(0, {1, 1});
  job.pass(std::chrono::hours(5));
  CHECK_FALSE(job.end);
  job.announce(1, {1, 1});
  CHECK(job.order == Order{0, 1});
}

TEST_CASE("a rank whose connection has ended has 10 s from the attempt's failure on to come back") {
  Formation job(1, 2, {0, 1});
  job.train(0);
  job.state.disconnected(Formation::connection(1), job.now);
  CHECK_FALSE(job.failed_by);  // it trains all the same
  job.pass(3600s);
  job.fail(CauseKind::timeout, 0, "slow");
  job.announce(0, {1, 1});
  job.pass(9s);
  CHECK(job.state.attempt() == 1);
  job.announce(1, {1, 1});
  CHECK(job.order == Order{0, 1});
}

TEST_CASE("the state is due at the earliest of its moments, whichever it considers first") {
  for (const int without_connection : {1, 2}) {
    CAPTURE(without_connection);
    Formation job(1, 4, {0, 1, 2, 3});
    job.train(0);
    job.lose(3);
    job.announce(0, {1, 1});
    job.state.disconnected(Formation::connection(without_connection), job.now);
    REQUIRE(job.state.next());
    CHECK(*job.state.next() == job.now + 10s);  // the other one is waited for as long as its heartbeats come
  }
}

TEST_CASE("workers that wait become ranks in the order in which they came last") {
  Formation job(1, 3, {0});
  job.pass(30s);
  job.train(0);
  job.announce(1);
  job.announce(2);
  job.announce(1);  // its connection was lost, say
  job.pass(1s);
  job.announce(0, {1, 1});
  CHECK(job.order == Order{0, 2, 1});
}

TEST_CASE("the end of a connection fails an attempt that joins, and not one that trains") {
  Formation job(1, 2, {0, 1});
  job.state.disconnected(Formation::connection(1), job.now);
  REQUIRE(job.failed_by);
  CHECK(job.failed_by->rank == 1);
}

TEST_CASE("newcomers end an attempt after its first commit, together, and no more often than a pause allows") {
  Formation job(1, 4, {0});
  job.pass(30s);
  job.announce(1);
  job.pass(10s);
  CHECK_FALSE(job.failed_by);  // not all ranks have joined
  job.state.joined(1, job.now);
  job.pass(10s);
  CHECK_FALSE(job.failed_by);  // nothing is committed
  job.train(0);
  CHECK(job.failed_by->kind == CauseKind::resized);
  job.pass(500ms);  // the pause
  job.announce(0, {1, 1});
  CHECK(job.order == Order{0, 1});
  job.train(0);
  job.announce(2);
  job.pass(900ms);
  job.announce(3);
  job.pass(8s);
  CHECK_FALSE(job.failed_by);  // 20 times the pause since the last time
  job.pass(1s);
  CHECK(job.failed_by->kind == CauseKind::resized);
  job.announce(0, {2, 2});
  job.announce(1, {2, 2});
  CHECK(job.order == Order{0, 1, 2, 3});
}

TEST_CASE("newcomers end no attempt while one of its ranks is in its own code") {
  Formation job(1, 3, {0, 1});
  job.pass(30s);
  job.train(0);
  job.in_own_code = {1};
  job.announce(2);
  job.pass(150s);
  CHECK_FALSE(job.failed_by);
  CHECK_CONTAINS(job.state.waits_for(), "for a call of dtrain by rank 1 on host a");
  job.in_own_code.clear();
  job.call();
  REQUIRE(job.failed_by);
  CHECK(job.failed_by->kind == CauseKind::resized);

  Formation gives_up(1, 3, {0, 1});
  gives_up.pass(30s);
  gives_up.train(0);
  gives_up.in_own_code = {1};
  gives_up.announce(2);
  gives_up.pass(10s);
  gives_up.state.disconnected(Formation::connection(2), gives_up.now);
  CHECK(gives_up.state.waits_for().empty());
  gives_up.in_own_code = {0, 1};
  gives_up.announce(3);  // rank 0 has called for worker 2, and evaluates now
  gives_up.pass(10s);
  gives_up.in_own_code = {0};
  gives_up.call();
  CHECK_FALSE(gives_up.failed_by);
  gives_up.in_own_code.clear();
  gives_up.call();
  CHECK(gives_up.failed_by);
}

TEST_CASE("a rank without a connection is not asked for its next call") {
  Formation job(1, 3, {0, 1});
  job.pass(30s);
  job.train(0);
  job.state.disconnected(Formation::connection(1), job.now);
  job.announce(2);
  job.pass(10s);
  CHECK(job.failed_by);
}

TEST_CASE("who is more than the most ranks waits, and takes the place of a loss") {
  Formation job(2, 2, {0, 1, 2});
  job.train(0);
  job.pass(100s);
  CHECK_FALSE(job.failed_by);
  job.lose(1);
  job.announce(0, {1, 7});
  CHECK(job.order == Order{0, 2});
}

TEST_CASE("the job waits for workers, and ends with the first cause where none will come") {
  Formation waits(2, 2, {0, 1});
  waits.train(0);
  waits.lose(1);
  waits.announce(0, {1, 1});
  CHECK(waits.state.waits_for() == "for workers: 1 is here, and the job needs 2");
  waits.pass(599s);
  CHECK_FALSE(waits.end);
  waits.pass(1s);
  CHECK(waits.end->text == "killed by signal 9; the job waited for workers: 1 is here, and the job needs 2");

  Formation alone(2, 2);
  alone.state.set_running_workers(2, alone.now);
  alone.announce(0);
  alone.announce(1);
  alone.train(0);
  alone.lose(1);
  alone.announce(0, {1, 1});
  CHECK_FALSE(alone.end);
  alone.state.set_running_workers(1, alone.now);
  CHECK(alone.end->text.find("killed by signal 9") == 0);
}

TEST_CASE("the job waits for workers from the last start of one on, although it is planned for later") {
  FormationOptions sizes = Formation::sizes(2, 2);
  sizes.wait_timeout = 20s;
  Formation job(sizes);
  job.announce(0);
  job.announce(1);
  job.train(0);
  job.lose(1);
  job.state.set_running_workers(2, job.now, job.now + 32s);
  job.announce(0, {1, 1});
  job.pass(51s);
  CHECK_FALSE(job.end);
  job.pass(1s);
  CHECK(job.end);
}

TEST_CASE("a worker can be spared only if another one that is connected has the state") {
  const auto can_spare = [](const Formation& job, int worker) {
    return job.state.workers().can_spare(*job.state.workers().find("a", worker));
  };
  Formation job(1, 2, {0, 1});
  job.train(0);
  job.state.lost(Formation::connection(0), CauseKind::lost, "silent", job.now);
  CHECK_FALSE(can_spare(job, 0));  // worker 1 may not have had the source's state yet
  job.announce(1, {1, 1});
  CHECK(can_spare(job, 0));
  job.lose(1);
  job.announce(2);  // a newcomer
  CHECK_FALSE(can_spare(job, 0));

  Formation joining(1, 2, {0, 1});
  joining.train(0);
  joining.fail(CauseKind::timeout, 0, "slow");
  joining.announce(0, {1, 3});
  joining.announce(1, {1, 3});
  joining.state.lost(Formation::connection(0), CauseKind::lost, "silent while it joined", joining.now);
  CHECK_FALSE(can_spare(joining, 0));
  joining.announce(1, {1, 3});  // is the source of an attempt without worker 0
  REQUIRE(joining.order == Order{1});
  CHECK(can_spare(joining, 0));
  joining.state.disconnected(Formation::connection(1), joining.now);
  CHECK_FALSE(can_spare(joining, 0));
}

TEST_CASE("a worker that was excluded long ago and lacks the state is dropped, and is welcome if it comes back") {
  Formation job(1, 2, {0});
  job.announce(1, {}, "b");
  job.train(0);
  job.state.lost(Formation::connection(1), CauseKind::lost, "silent", job.now);
  const auto form_again = [&](TrainingProgress progress) {
    job.announce(0, progress);
    CHECK(job.state.attempt() == progress.attempt + 1);
    job.train(0);
    job.fail(CauseKind::timeout, 0, "slow");
  };
  form_again({1, 1});  // worker 1 may have its state
  job.pass(119s);
  form_again({2, 2});
  CHECK(job.state.workers().all().size() == 2);
  job.pass(2s);
  form_again({3, 3});
  CHECK(job.state.workers().all().size() == 1);
  CHECK(job.announce(2, {3, 9}, "b", 7));  // it cannot have been a rank
  CHECK(job.announce(1, {1, 9}, "b"));
  CHECK_FALSE(job.announce(1, {1, 9}, "b", 7));
  job.announce(0, {4, 4});
  CHECK(job.order == Order{0, 1});
  CHECK(job.source == TrainingProgress{4, 4});
}

TEST_CASE("a job that has trained waits for a worker that has its state") {
  Formation job(1, 2, {0, 1});
  job.train(0);
  job.announce(2);
  job.state.lost(Formation::connection(0), CauseKind::lost, "silent", job.now);
  job.state.lost(Formation::connection(1), CauseKind::lost, "silent", job.now);
  job.pass(100s);
  CHECK(job.state.attempt() == 1);  // worker 2 has nothing
  job.announce(1, {1, 3});
  CHECK(job.order == Order{1, 2});
}

TEST_CASE("a job goes on with a survivor that is a step behind, once the rank ahead of it is lost before they train") {
  Formation job(1, 3, {0, 1, 2});
  job.train(0);
  job.lose(0);
  job.announce(1, {1, 4});
  job.announce(2, {1, 5});  // it has committed a step with the lost one
  CHECK(job.order == Order{2, 1});
  job.announce(3);
  for (const std::uint64_t attempt : {2u, 3u}) {
    CHECK(job.state.attempt() == attempt);
    job.state.joined(attempt, job.now);
    if (attempt == 2) {
      job.fail(CauseKind::exception, 1, "a mistake");
      job.announce(2, {1, 5});
      job.announce(1, {1, 4});
    }
  }
  job.lose(2);
  job.announce(1, {1, 4});
  CHECK(job.state.attempt() == 3);
  job.announce(3);  // leaves the attempt, in which it has received nothing
  CHECK(job.order == Order{1, 3});
  CHECK(job.source == TrainingProgress{1, 4});
  CHECK_FALSE(job.end);

  job.state.joined(4, job.now);
  job.lose(1);  // it may have committed a step
  job.announce(3, {4, 5});
  CHECK(job.order == Order{3});
}

TEST_CASE("a receiver that had no state of its own does not stand in for its lost source") {
  Formation job(1, 3, {0, 1, 2});
  job.lose(2);                  // while rank 1 joins
  job.announce(0, {1, 5'000});  // trains from a checkpoint
  job.announce(1);
  CHECK(job.order == Order{0, 1});
  CHECK(job.source == TrainingProgress{1, 5'000});
  job.lose(0);  // in the middle of what it sends
  job.announce(1);
  CHECK(job.state.attempt() == 2);
}

TEST_CASE("a disagreement, and exit code 2, end a job before its first commit only") {
  Formation early(1, 2, {0, 1});
  early.fail(CauseKind::disagreement, 0, "models differ");
  CHECK(early.end->text == "models differ");
  Formation usage(1, 2, {0, 1});
  usage.state.process_ended("a", 1, 2, "exit code 2", usage.now);
  CHECK(usage.end->text == "exit code 2");
  Formation late(1, 2, {0, 1});
  late.train(0);
  late.fail(CauseKind::disagreement, 0, "models differ");
  CHECK_FALSE(late.end);
}

TEST_CASE("one error of two workers' own without a commit ends the job, and a commit between them forgets it") {
  const auto end_by = [](Formation& job, int worker, int other, const std::string& text) {
    job.fail(CauseKind::exception, 0, text);
    job.announce_error(worker, {}, CauseKind::exception, text);
    CHECK_FALSE(job.own_errors.contains(worker));  // the other rank may have thrown the same
    job.announce(other);
    CHECK(job.own_errors.contains(worker));
  };
  Formation twice(1, 3, {0, 1, 2});
  end_by(twice, 2, 1, "no such file");
  CHECK_FALSE(twice.end);
  twice.announce(0);
  CHECK(twice.order == Order{0, 1});
  end_by(twice, 1, 0, "no such file");
  REQUIRE(twice.end);
  CHECK(twice.end->text == "no such file");

  Formation other(1, 3, {0, 1, 2});
  end_by(other, 2, 1, "no such file");
  other.announce(0);
  other.train(0);
  end_by(other, 1, 0, "no such file");
  CHECK_FALSE(other.end);
  CHECK(other.state.workers().error_of("a", 1) == "no such file");

  Formation later(1, 3, {0, 1, 2});  // the commit is of an attempt between the two
  end_by(later, 2, 1, "no such file");
  later.announce(0);
  later.train(0);
  later.fail(CauseKind::timeout, 0, "slow");
  for (const int worker : {0, 1})
    later.announce(worker, {2, 1});
  REQUIRE(later.state.attempt() == 3);
  later.fail(CauseKind::exception, 0, "no such file");
  later.announce_error(1, {3, 1}, CauseKind::exception, "no such file");
  later.announce(0, {3, 1});
  CHECK(later.own_errors == std::set<int>{1, 2});
  CHECK_FALSE(later.end);
}

TEST_CASE("an error that all ranks threw alike ends none of them, and the ranks are formed anew") {
  Formation job(1, 2, {0, 1});
  job.train(0);
  for (std::uint64_t attempt = 1; attempt < 4; ++attempt) {
    job.fail(CauseKind::exception, 1, "needs 4 ranks, not 2");
    for (const int worker : {1, 0})
      job.announce_error(worker, {attempt, 1}, CauseKind::exception, "needs 4 ranks, not 2");
    CHECK(job.state.attempt() == attempt + 1);
    CHECK(job.order == Order{0, 1});
  }
  CHECK(job.own_errors.empty());
  CHECK_CONTAINS(job.warnings.back(), "every rank of attempt 3 failed alike: needs 4 ranks, not 2");

  Formation early(1, 2, {0, 1});  // nothing is lost
  early.state.joined(1, early.now);
  early.fail(CauseKind::exception, 1, "no such file");
  for (const int worker : {1, 0})
    early.announce_error(worker, {1, 0}, CauseKind::exception, "no such file");
  REQUIRE(early.end);
  CHECK(early.end->text == "no such file");
}

TEST_CASE("a worker that is told to end has its place free for another one, although it is still connected") {
  Formation job(2, 2);
  job.state.set_running_workers(2, job.now);
  job.announce(0);
  job.announce(1);
  job.train(0);
  job.fail(CauseKind::exception, 1, "a mistake");
  job.announce_error(1, {1, 1}, CauseKind::exception, "a mistake");
  job.announce(0, {1, 1});
  REQUIRE(job.own_errors == std::set<int>{1});
  CHECK_FALSE(job.end);
  CHECK_FALSE(job.state.workers().can_spare(*job.state.workers().find("a", 0)));
  job.lose(1);
  CHECK_FALSE(job.end);
  job.announce(2);
  CHECK(job.order == Order{0, 2});
}

TEST_CASE("an error of all ranks that names one of them, as a failed save does, ends that rank when it comes again") {
  Formation job(1, 2, {0, 1});
  job.train(0);
  for (std::uint64_t attempt = 1; job.own_errors.empty(); ++attempt) {
    REQUIRE(attempt < 10);
    job.fail(CauseKind::exception, 0, "the disk is full");
    for (const int worker : {0, 1})
      job.announce_error(worker, {attempt, 1}, CauseKind::exception, "the disk is full", 0);
  }
  CHECK(job.state.attempt() == 5);  // 3 attempts in which it may have passed, and the one that saves on another rank
  CHECK(job.own_errors == std::set<int>{0});
  CHECK(job.order == Order{1});
}

TEST_CASE("an error of all ranks that names a rank which the attempt has not ends none of them") {
  Formation job(1, 2, {0, 1});
  job.train(0);
  for (std::uint64_t attempt = 1; attempt < 6; ++attempt) {
    job.fail(CauseKind::exception, 0, "the disk is full");
    for (const int worker : {0, 1})
      job.announce_error(worker, {attempt, 1}, CauseKind::exception, "the disk is full", 2);
    CHECK(job.state.attempt() == attempt + 1);
  }
  CHECK(job.own_errors.empty());
}

TEST_CASE("a disagreement of all ranks ends the rank that it names, or the job") {
  Formation named(1, 3, {0, 1, 2});
  named.train(0);
  named.fail(CauseKind::exception, 1, "values differ");  // whoever was first
  named.announce_error(1, {1, 7}, CauseKind::disagreement, "values differ", 2);
  named.announce(2, {1, 7});  // has learnt of the failure before it had the result
  CHECK(named.own_errors == std::set<int>{2});
  named.announce_error(0, {1, 7}, CauseKind::disagreement, "values differ", 2);
  CHECK(named.order == Order{0, 1});
  CHECK_FALSE(named.end);

  Formation gone(1, 3, {0, 1, 2});
  gone.train(0);
  gone.fail(CauseKind::exception, 1, "values differ");
  for (const int worker : {0, 1})
    gone.announce_error(worker, {1, 7}, CauseKind::disagreement, "values differ", 2);
  CHECK(gone.state.attempt() == 1);
  gone.lose(2);
  CHECK(gone.order == Order{0, 1});

  Formation open(1, 2, {0, 1});
  open.train(0);
  open.fail(CauseKind::exception, 1, "values differ");
  open.announce_error(1, {1, 7}, CauseKind::disagreement, "values differ");
  REQUIRE(open.end);
  CHECK(open.end->kind == CauseKind::disagreement);
  CHECK(open.end->sentence() == "ranks disagree: values differ");
  CHECK(open.own_errors.empty());
}

TEST_CASE("newcomers that are rejected one after the other do not end the job of those that have the state") {
  Formation job(1, 4, {0});
  job.admit({1, 2, 3});
  REQUIRE(job.order == Order{0, 1, 2, 3});
  job.state.joined(2, job.now);
  job.fail(CauseKind::exception, 0, "samplers differ");
  job.announce_error(0, {2, 1}, CauseKind::disagreement, "samplers differ");
  for (const int worker : {1, 2, 3}) {
    CHECK(job.announce(worker)->sentence == "samplers differ");
    job.state.lost(Formation::connection(worker), CauseKind::exception, "refused: samplers differ", job.now);
  }
  CHECK_FALSE(job.end);
  CHECK(job.order == Order{0});
}

TEST_CASE("errors of several ranks of one attempt are no repetition, and each ends by its error") {
  Formation job(1, 3, {0, 1, 2});
  job.train(0);
  job.fail(CauseKind::timeout, 0, "slow");
  for (const int worker : {0, 1, 2})
    job.announce(worker, {1, 1});
  REQUIRE(job.state.attempt() == 2);
  job.fail(CauseKind::exception, 0, "no space");  // nothing is committed in this attempt
  job.announce_error(0, {2, 1}, CauseKind::exception, "no space");
  job.announce_error(1, {2, 1}, CauseKind::exception, "no space");
  job.announce(2, {2, 1});
  CHECK(job.own_errors == std::set<int>{0, 1});
  CHECK_FALSE(job.end);
  CHECK(job.order == Order{2});
}

TEST_CASE("a rank whose error is not attributed yet does not stand in for one that is in its own code") {
  Formation job(1, 2, {0, 1});
  job.train(0);
  job.fail(CauseKind::exception, 0, "a mistake");
  job.announce_error(0, {1, 1}, CauseKind::exception, "a mistake");
  job.pass(std::chrono::hours(1));
  CHECK(job.closed.empty());
  job.announce(1, {1, 1});
  CHECK(job.own_errors == std::set<int>{0});
  CHECK(job.order == Order{1});
}

TEST_CASE(
    "an error that several ranks threw and that names a rank is shared, although one learnt of the failure first") {
  Formation job(1, 3, {0, 1, 2});
  job.train(0);
  job.fail(CauseKind::exception, 0, "the disk is full");
  job.announce_error(0, {1, 1}, CauseKind::exception, "the disk is full", 0);
  job.announce_error(1, {1, 1}, CauseKind::exception, "the disk is full", 0);
  job.announce(2, {1, 1});
  CHECK(job.own_errors.empty());
  CHECK(job.order == Order{0, 1, 2});
}

TEST_CASE("weights that a rank does not compare are no difference") {
  Formation job(2, 2, {0, 1});
  job.state.joined(1, job.now);
  job.state.committed(Formation::connection(0), {1, {}}, job.now);
  job.state.committed(Formation::connection(1), {1, WeightsSummary{6, 1e-3, {2}}}, job.now);
  CHECK_FALSE(job.end);
}

TEST_CASE("a disagreement before the first commit with newcomers rejects the newcomers, whomever it names") {
  Formation job(1, 3, {0});
  job.admit({1, 2});
  REQUIRE(job.order == Order{0, 1, 2});
  job.state.joined(2, job.now);
  job.fail(CauseKind::exception, 1, "samplers differ");
  job.announce(1, {2, 1});  // has learnt of the failure before it had the result
  job.announce_error(0, {2, 1}, CauseKind::disagreement, "samplers differ", 0);
  CHECK(job.announce(2)->sentence == "samplers differ");
  job.state.lost(Formation::connection(2), CauseKind::exception, "this worker was refused: samplers differ", job.now);
  CHECK(job.rejected == std::map<int, std::string>{{1, "samplers differ"}});
  job.lose(2);
  CHECK(job.order == Order{0});
  CHECK_FALSE(job.end);
  CHECK(job.announce(1)->sentence == "samplers differ");  // as often as it comes

  job.train(0);
  job.announce(3);
  job.pass(100s);
  job.announce(0, {3, 2});
  REQUIRE(job.order == Order{0, 3});
  job.fail(CauseKind::disagreement, 1, "models differ");  // the store of the attempt says whose it is
  job.announce(0, {3, 2});
  CHECK(job.announce(3)->sentence == "models differ");
}

TEST_CASE("attempts without a commit in a row pause between each other, and ten end the job with the last cause too") {
  FormationOptions sizes = Formation::sizes(1, 2);
  sizes.least_pause = 100ms;
  sizes.longest_pause = 1s;
  Formation job(sizes);
  job.announce(0);
  job.announce(1);
  job.train(0);
  job.fail(CauseKind::timeout, 0, "slow");
  job.announce(0, {1, 1});
  job.announce(1, {1, 1});
  CHECK(job.state.attempt() == 2);  // at once: a step was committed
  CHECK(job.warnings.empty());
  for (const auto pause : {0ms, 100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms, 1000ms, 1000ms}) {
    const std::uint64_t attempt = job.state.attempt();
    CAPTURE(attempt);
    job.fail(CauseKind::lost, 1, "no threads " + std::to_string(attempt));
    job.announce(0, {1, 1});
    job.announce(1, {1, 1});
    if (pause > 0ms) {
      job.pass(pause - 1ms);
      CHECK(job.state.attempt() == attempt);
      job.pass(1ms);
    }
    CHECK(job.state.attempt() == attempt + 1);
    CHECK_CONTAINS(job.warnings.back(), "attempt " + std::to_string(attempt) + " has ended without a commit");
  }
  job.fail(CauseKind::timeout, 0, "slow again");
  REQUIRE(job.end);
  CHECK(job.end->text == "slow; the last of 10 attempts without a commit: rank 0 on host a timed out: slow again");
}

TEST_CASE("a worker that lacked the means to join an attempt says so, and is a rank of the next one") {
  Formation job(2, 2, {0, 1});
  job.announce_error(1, {}, CauseKind::lost, "it could not join the attempt: no threads");
  REQUIRE(job.failed_by);
  CHECK(job.failed_by->text == "it could not join the attempt: no threads");
  job.announce(0);
  CHECK(job.order == Order{0, 1});

  FormationOptions sizes = Formation::sizes(2, 2);
  sizes.attempts_without_commit = 2;
  Formation ends(sizes);
  ends.announce(0);
  ends.announce(1);
  ends.fail(CauseKind::exception, 1, "an exception ended the process group");
  ends.announce_error(1, {}, CauseKind::lost, "no threads");
  ends.announce(0);
  ends.fail(CauseKind::timeout, 0, "slow");
  REQUIRE(ends.end);
  CHECK_CONTAINS(ends.end->text, "no threads; the last of 2 attempts");
}

TEST_CASE("an attempt with newcomers that times out before a commit bars their hosts for 20 times as long") {
  for (const int reporter : {0, 1}) {  // the rank that has the state, or the newcomer
    CAPTURE(reporter);
    Formation job(1, 2, {0});
    job.admit({1}, "b");
    REQUIRE(job.order == Order{0, 1});
    job.state.joined(2, job.now);
    job.pass(600s);
    job.fail(CauseKind::timeout, reporter, "no data gets through");
    job.announce(1, {}, "b");
    job.announce(0, {1, 1});
    CHECK(job.order == Order{0});
    REQUIRE(job.barred.contains(1));
    CHECK(job.barred[1].milliseconds == 20 * 600 * 1000);
    CHECK_CONTAINS(job.barred[1].reason, "attempt 2, which had a new worker of this host, timed out before a commit",
                   " timed out: no data gets through");
    job.train(0);
    job.pass(3600s);
    CHECK_FALSE(job.failed_by);
  }

  Formation late(1, 2, {0});  // after a commit the newcomer is a rank like any other
  late.pass(30s);
  late.train(0);
  late.announce(1, {}, "b");
  late.pass(1s);
  late.announce(0, {1, 1});
  late.train(0);
  late.fail(CauseKind::timeout, 0, "slow");
  late.announce(1, {2, 2}, "b");
  late.announce(0, {2, 2});
  CHECK(late.order == Order{0, 1});
}

TEST_CASE("a newcomer that breaks an attempt bars its host, which learns until when, and the ranks there go on") {
  Formation job(1, 4, {0});
  job.admit({1});
  REQUIRE(job.order == Order{0, 1});
  job.lose(1);
  job.announce(2);
  job.announce(0, {2, 1});
  CHECK(job.order == Order{0});
  REQUIRE(job.barred.contains(2));
  CHECK(job.barred[2].milliseconds == 1000);
  CHECK_CONTAINS(job.barred[2].reason, "a new worker of this host broke attempt 2",
                 "rank 1 on host a was lost: killed by signal 9");
  job.train(0);  // a rank of the host commits, and lifts no bar
  job.announce(3, {}, "b");
  job.pass(999ms);
  CHECK_FALSE(job.failed_by);
  job.pass(9s);
  REQUIRE(job.failed_by);  // for workers 2 and 3
  job.announce(0, {3, 4});
  REQUIRE(job.order == Order{0, 2, 3});
  job.state.joined(4, job.now);
  job.lose(2);
  job.announce(3, {4, 4}, "b");
  job.announce(4);
  job.announce(0, {4, 4});
  CHECK(job.order == Order{0, 3});
  CHECK(job.barred[4].milliseconds == 2000);
}

TEST_CASE("a barred worker is told once, and again if it connects again") {
  Formation job(1, 4, {0});
  job.admit({1, 2});
  REQUIRE(job.order == Order{0, 1, 2});
  job.lose(1);
  job.announce(2);
  CHECK(job.barred[2].milliseconds == 1000);
  job.barred.clear();
  job.pass(500ms);
  CHECK(job.barred.empty());
  job.state.disconnected(Formation::connection(2), job.now);
  job.announce(2);
  CHECK(job.barred[2].milliseconds == 500);
  job.announce(0, {1, 1});
  REQUIRE(job.order == Order{0});
  job.train(0);
  job.pass(10s);
  CHECK(job.failed_by);  // for worker 2
}

TEST_CASE("a worker that waits learns that its host is barred, and a newcomer's commit ends the bar") {
  Formation job(1, 4);
  job.announce(0, {}, "b");
  job.pass(30s);
  job.train(0);
  job.announce(1);
  job.announce(2);
  job.pass(1s);
  job.announce(0, {1, 1}, "b");
  REQUIRE(job.order == Order{0, 1, 2});
  job.announce(3);  // too late for this attempt
  CHECK(job.barred.empty());
  job.state.joined(2, job.now);
  job.lose(1);
  CHECK(job.barred[3].milliseconds == 1000);
  job.state.committed(Formation::connection(2), {2}, job.now);  // sent before the loss
  job.announce(9);
  CHECK(job.barred[9].milliseconds == 1000);
  job.state.disconnected(Formation::connection(9), job.now);
  job.announce(0, {2, 1}, "b");
  job.announce(2, {2, 1});  // has received the state
  REQUIRE(job.order == Order{0, 2});
  job.train(2);  // a newcomer no longer, which has not brought down anything
  job.pass(100s);
  REQUIRE(job.failed_by);
  job.announce(0, {3, 9}, "b");
  job.announce(2, {3, 9});
  REQUIRE(job.order == Order{0, 2, 3});
  job.train(3);
  job.lose(3);  // no newcomer any more: its host is not barred
  job.announce(4);
  job.announce(0, {4, 9}, "b");
  job.announce(2, {4, 9});
  REQUIRE(job.order == Order{0, 2, 4});
  job.lose(4);
  job.announce(5);
  job.announce(0, {4, 9}, "b");
  job.announce(2, {4, 9});
  REQUIRE(job.order == Order{0, 2});
  CHECK(job.barred[5].milliseconds == 1000);  // as at first
}

TEST_CASE("a second connection of a worker takes the place of the first") {
  Formation job(2, 2, {0});
  Announce again;
  again.worker = {"a", 0, 0};
  again.settings = "kept=all\n";
  job.state.announce(50, again, job.now);
  CHECK(job.closed == std::vector<ConnectionId>{Formation::connection(0)});
  job.announce(1);
  CHECK(job.order.front() == 49);  // connection 50
}

TEST_CASE("a worker that is refused disturbs nobody") {
  Formation job(1, 2, {0});
  job.pass(30s);
  job.train(0);
  Announce unlike;
  unlike.worker = {"a", 9, 9};
  unlike.settings = "kept=less\n";
  const std::optional<Refused> refused = job.state.announce(90, unlike, job.now);
  REQUIRE(refused);
  CHECK(refused->sentence.find("kept=less, and the workers of the job have kept=all") != std::string::npos);
  CHECK_FALSE(refused->other_job);
  CHECK(job.announce(8, {1, 3})->other_job);
  job.pass(10s);
  CHECK_FALSE(job.failed_by);
}

TEST_CASE("a store that cannot open an attempt ends the job, and every worker learns the cause") {
  Formation job(2, 2);
  job.cannot_open = Cause{CauseKind::exception, -1, {}, "no random bytes"};
  job.announce(0);
  job.announce(1);
  REQUIRE(job.end);
  CHECK(job.end->text == "no random bytes");
  CHECK(job.order.empty());
  CHECK(job.told == std::map<ConnectionId, std::string>{{1, "no random bytes"}, {2, "no random bytes"}});
  job.announce(2);
  CHECK(job.told.at(Formation::connection(2)) == "no random bytes");
}

TEST_CASE("a worker that reports its error is a loss with that cause, and known by it until its process has ended") {
  Formation job(1, 2, {0, 1});
  job.train(0);
  job.state.lost(Formation::connection(1), CauseKind::exception, "no such file", job.now);
  REQUIRE(job.failed_by);
  CHECK(job.failed_by->sentence() == "rank 1 on host a failed: no such file");
  CHECK(job.state.workers().error_of("a", 1) == "no such file");
  job.announce(0, {1, 1});
  CHECK(job.order == Order{0});  // nobody waits for it
  CHECK(job.state.workers().error_of("a", 1) == "no such file");
  job.lose(1);
  CHECK(job.state.workers().error_of("a", 1) == "");

  job.announce(5);  // never a rank
  job.state.lost(Formation::connection(5), CauseKind::exception, "no memory", job.now);
  CHECK(job.state.workers().error_of("a", 5) == "no memory");
  job.lose(5);
  CHECK(job.state.workers().find("a", 5) == nullptr);
}

TEST_CASE("exit code 2 of a worker that was refused ends the job with the reason") {
  Formation job(2, 2, {0});
  Announce unlike;
  unlike.worker = {"a", 9, 9};
  unlike.settings = "kept=less\n";
  REQUIRE(job.state.announce(90, unlike, job.now));
  job.state.process_ended("a", 9, 2, "exit code 2", job.now);
  REQUIRE(job.end);
  CHECK_CONTAINS(job.end->text, "exit code 2: it has kept=less, and the workers of the job have kept=all");
}

TEST_CASE("all ranks of an attempt finish the job, and who comes later is told") {
  Formation job(1, 2, {0, 1});
  job.train(0);
  job.announce(2);
  job.state.finished(Formation::connection(0), {1}, job.now);
  CHECK_FALSE(job.has_finished);
  job.state.finished(Formation::connection(1), {1}, job.now);
  CHECK(job.has_finished);
  CHECK(job.warnings.empty());
  CHECK(job.finished == std::map<ConnectionId, bool>{{1, true}, {2, true}, {3, false}});
  job.announce(3);
  CHECK(job.finished.at(Formation::connection(3)) == false);
}

TEST_CASE("a rank that had finished in an attempt that failed has not finished in the next one") {
  Formation job(2, 2, {0, 1});
  job.train(0);
  job.state.finished(Formation::connection(0), {1}, job.now);
  job.fail(CauseKind::timeout, 1, "slow");
  for (const int worker : {0, 1})
    job.announce(worker, {1, 1});
  REQUIRE(job.state.attempt() == 2);
  job.state.finished(Formation::connection(1), {2}, job.now);
  CHECK_FALSE(job.has_finished);
  job.state.finished(Formation::connection(0), {2}, job.now);
  CHECK(job.has_finished);
}

TEST_CASE("a worker that was a rank of an earlier attempt alone has no success with the last one") {
  Formation job(1, 1, {0, 1});
  REQUIRE(job.order == Order{0});
  job.state.disconnected(Formation::connection(0), job.now);
  job.pass(10s);
  REQUIRE(job.order == Order{1});
  job.announce(0);
  job.state.finished(Formation::connection(1), {2}, job.now);
  CHECK(job.has_finished);
  CHECK(job.finished == std::map<ConnectionId, bool>{{1, false}, {2, true}});
}

TEST_CASE("ranks that finish a job with different states are warned of") {
  Formation job(2, 3, {0, 1, 2});
  job.train(0);
  for (const int worker : {0, 1, 2})
    job.state.finished(Formation::connection(worker), {1, false, worker == 1 ? 5u : 4u}, job.now);
  CHECK(job.has_finished);
  REQUIRE(job.warnings.size() == 1);
  CHECK_CONTAINS(job.warnings[0], "the kept state of rank 1 on host a differs from that of rank 0");

  Formation sharded(2, 3, {0, 1, 2});  // a rank that came late does not know that the states may differ
  sharded.train(0);
  for (const int worker : {0, 1, 2})
    sharded.state.finished(Formation::connection(worker), {1, false, worker == 1 ? 5u : 0u}, sharded.now);
  CHECK(sharded.has_finished);
  CHECK(sharded.warnings.empty());
}

TEST_CASE("a thousand workers get their ranks at once") {
  Formation job(1000, 1000);
  for (int worker = 0; worker < 1000; ++worker) {
    job.announce(worker, {}, "h" + std::to_string(worker % 50));
  }
  CHECK(job.order.size() == 1000);
}
