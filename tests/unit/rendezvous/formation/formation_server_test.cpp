#include "dtrain/rendezvous/formation/formation_server.hpp"

#include "dtrain/rendezvous/formation/formation_client.hpp"
#include "support/gate.hpp"
#include "unit/rendezvous/formation/formation_process.hpp"
#include "unit/rendezvous/prelude.hpp"

namespace {

/// A worker of the tests, whose process is a number.
struct TestWorker {
  TestWorker(const StoreAddress& at, std::int64_t process, std::chrono::seconds timeout = 30s,
             std::chrono::milliseconds notice_after = 10s)
      : client(at, timeout, {}, notice_after), address(at) {
    announce.worker = {"h", process, static_cast<std::uint64_t>(process)};
    announce.host = "h";
    announce.settings = "kept=all\n";
  }

  /// Announces itself until it has joined an attempt. @returns the end of the job instead
  std::optional<Finished> join() {
    announce.progress = progress.value();
    const ToWorker answer = client.announce_blocking(announce);
    if (const Finished* finished = std::get_if<Finished>(&answer)) {
      return *finished;
    }
    assignment = std::get<Assignment>(answer);
    announce.job = assignment.job;
    ControlPlaneOptions options = rank_options(assignment.rank, assignment.world_size, address.port);
    options.identity.attempt = static_cast<int>(assignment.attempt);
    options.secret = address.secret;
    control_plane = std::make_unique<ControlPlane>(options);
    progress.received(assignment.source);
    progress.began(assignment.attempt);
    return std::nullopt;
  }

  /// Blocking: until all ranks of the attempt have joined.
  void wait_for_all() { control_plane->store().barrier("all have joined", soon()).wait(); }

  FailureLatch& failure() { return *control_plane->failure(); }

  /// Blocking: until the attempt has failed. @returns whether it has in time @param calls whether the program calls
  /// dtrain meanwhile
  bool wait_for_failure(bool calls = true, dtrain::Deadline deadline = soon()) {
    while (!failure().block_until_failed(dtrain::Deadline::after(5ms)) && !deadline.passed()) {
      if (calls) client.call_report()->on_call();
    }
    return failure().failed();
  }

  /// Blocking: joins the next attempt once this one has failed.
  void join_again() {
    REQUIRE(wait_for_failure());
    control_plane.reset();
    REQUIRE_FALSE(join());
  }

  FormationClient<> client;
  StoreAddress address;
  Announce announce;
  WorkerProgress progress;
  Assignment assignment;
  std::unique_ptr<ControlPlane> control_plane;
};

FormationOptions sizes(int least, int most) {
  FormationOptions options;
  options.min_workers = least;
  options.max_workers = most;
  return options;
}

/// Options of a job in which newcomers end attempts at once.
FormationOptions hasty_sizes(int least, int most) {
  FormationOptions options = sizes(least, most);
  options.first_formation = 0ms;
  options.collect = 1ms;
  options.least_resize_gap = 0ms;
  return options;
}

/// The first worker is alone in attempt 1, is joined by another one in attempt 2, which ends there at once, and is
/// alone in attempt 3. @param before what the other one does before it ends
void break_attempt(
    FormationProcess& launcher, TestWorker& first, const std::function<void()>& before = [] {}) {
  REQUIRE_FALSE(first.join());
  support::Gate first_has_joined;
  const auto errors = on_ranks(2, [&](int index) {
    if (index == 1) {
      TestWorker newcomer(launcher.address(), 101);
      REQUIRE_FALSE(newcomer.join());
      first_has_joined.pass();
      before();
      newcomer.control_plane.reset();
      launcher.process_ended(101);
      return;
    }
    first.progress.committed();
    first.client.committed({1});
    for (const std::uint64_t attempt : {2u, 3u}) {
      first.join_again();
      first_has_joined.open();
      CHECK(first.assignment.attempt == attempt);
    }
  });
  REQUIRE(errors == std::vector<std::string>(2));
}

}  // namespace

TEST_CASE("workers form an attempt, lose one, and finish in the next") {
  FormationProcess launcher(sizes(1, 3), Secret::drawn());
  std::vector<Finished> ends(3);
  std::vector<Assignment> last(3);
  run_ranks(3, [&](int index) {
    TestWorker worker(launcher.address(), 100 + index);
    REQUIRE_FALSE(worker.join());
    CHECK(worker.assignment.world_size == 3);
    worker.wait_for_all();
    worker.progress.committed();
    worker.client.committed({worker.assignment.attempt});
    if (index == 2) {
      worker.control_plane.reset();  // without leaving
      launcher.process_ended(102);
      return;
    }
    REQUIRE(worker.failure().block_until_failed(soon()));
    CHECK_FALSE(worker.client.finish_blocking(worker.assignment.attempt, 0, worker.failure()));
    worker.control_plane.reset();
    REQUIRE_FALSE(worker.join());
    last[static_cast<std::size_t>(index)] = worker.assignment;
    const auto end = worker.client.finish_blocking(worker.assignment.attempt, 0, worker.failure());
    REQUIRE(end.has_value());
    ends[static_cast<std::size_t>(index)] = *end;
    worker.control_plane->leave_blocking(soon());
  });
  for (const std::size_t index : {0u, 1u}) {
    CHECK(ends[index].is_member);
    CHECK(ends[index].attempt == 2);
    CHECK(last[index].world_size == 2);
    CHECK(last[index].receivers == 0);
    CHECK(last[index].source == TrainingProgress{1, 1});
  }
  CHECK(last[0].rank != last[1].rank);
}

TEST_CASE("a newcomer ends a healthy attempt once a step is committed in it, and receives the state of the others") {
  FormationOptions options = sizes(1, 2);
  options.first_formation = 0ms;
  options.collect = 50ms;
  options.least_resize_gap = 0ms;
  FormationProcess launcher(options);
  std::binary_semaphore has_joined(0);
  std::vector<Assignment> last(2);
  run_ranks(2, [&](int index) {
    TestWorker worker(launcher.address(), 100 + index);
    if (index == 1) {
      has_joined.acquire();
    }
    REQUIRE_FALSE(worker.join());
    if (index == 0) {
      CHECK(worker.assignment.world_size == 1);
      worker.progress.committed();
      worker.client.committed({1});
      has_joined.release();
      CHECK_FALSE(worker.wait_for_failure(false, dtrain::Deadline::after(300ms)));  // it is in its own code
      REQUIRE(worker.wait_for_failure());
      CHECK(worker.failure().cause()->kind == CauseKind::resized);
      worker.join_again();
    }
    last[static_cast<std::size_t>(index)] = worker.assignment;
    REQUIRE(worker.client.finish_blocking(worker.assignment.attempt, 0, worker.failure()).has_value());
    worker.control_plane->leave_blocking(soon());
  });
  CHECK(last[0].rank == 0);
  CHECK(last[1].rank == 1);
  CHECK(last[1].world_size == 2);
  CHECK(last[1].receivers == 1);
  CHECK(last[1].source == TrainingProgress{1, 1});
}

TEST_CASE("a barred worker learns until when and why, and waits for its own timeout at most") {
  FormationOptions options = hasty_sizes(1, 2);
  options.least_bar = 60s;
  FormationProcess launcher(options);
  TestWorker first(launcher.address(), 100);
  break_attempt(launcher, first);
  TestWorker barred(launcher.address(), 102, 2s);
  support::CapturedStderr captured;
  CHECK_ERROR(barred.join(), Errc::timeout, "the deadline passed while this worker had to wait",
              "because a new worker of this host broke attempt 2", "DTRAIN_TIMEOUT_SECONDS");
  CHECK_CONTAINS(captured.text(), "dtrain: this worker waits ", " UTC, before it may become a rank, because ",
                 "broke attempt 2 before it had committed a step there: rank 1 on host ");
  CHECK_FALSE(first.failure().failed());
}

TEST_CASE("a barred worker gets a rank without an error once the bar has ended") {
  FormationProcess launcher(hasty_sizes(1, 2));
  TestWorker first(launcher.address(), 100);
  break_attempt(launcher, first);
  run_ranks(2, [&](int index) {
    if (index == 1) {
      TestWorker barred(launcher.address(), 102);
      REQUIRE_FALSE(barred.join());
      CHECK(barred.assignment.attempt == 4);
      CHECK(barred.assignment.source == TrainingProgress{3, 2});
      return;
    }
    first.progress.committed();
    first.client.committed({3});
    first.join_again();
    CHECK(first.assignment.world_size == 2);
  });
}

TEST_CASE("a worker that has waited for longer than its timeout before its host is barred waits for the bar's end") {
  constexpr std::chrono::seconds timeout(3);  // longer than a bar of 1 s
  FormationProcess launcher(hasty_sizes(1, 3));
  TestWorker first(launcher.address(), 100);
  std::string error = "did not run";
  std::thread waiting;
  break_attempt(launcher, first, [&] {
    waiting = std::thread([&] {
      error = on_ranks(1, [&](int) {
                TestWorker barred(launcher.address(), 102, timeout);
                CHECK_FALSE(barred.join());
              }).front();
    });
    std::this_thread::sleep_for(timeout + 200ms);
  });
  first.progress.committed();
  first.client.committed({3});
  CHECK(first.wait_for_failure());
  first.control_plane.reset();
  CHECK_FALSE(first.join());
  waiting.join();
  CHECK(error == "");
}

TEST_CASE("a job that is stopped ends for all of its ranks, and is drained once they have closed their connections") {
  FormationProcess launcher(sizes(2, 2));
  std::atomic<bool> is_leaving = false;
  bool was_leaving = false;
  std::thread drain;
  run_ranks(2, [&](int index) {
    TestWorker worker(launcher.address(), 100 + index);
    REQUIRE_FALSE(worker.join());
    worker.wait_for_all();
    if (index == 0) launcher.stop("SIGTERM came");
    REQUIRE(worker.failure().block_until_failed(soon()));
    worker.control_plane.reset();
    CHECK_ERROR(worker.join(), Errc::job_failed, "the job was stopped: SIGTERM came");
    if (index == 1) {
      drain = std::thread([&] {
        launcher.drain_blocking();
        was_leaving = is_leaving;
      });
      CHECK_ERROR(worker.join(), Errc::job_failed, "the job was stopped: SIGTERM came");  // a later worker is answered
      is_leaving = true;
    }
  });
  if (drain.joinable()) drain.join();
  CHECK(was_leaving);
}

TEST_CASE("a job that drains is cut short by a further request to stop, although a worker is connected") {
  FormationProcess launcher(sizes(1, 1));
  TestWorker worker(launcher.address(), 1);
  REQUIRE_FALSE(worker.join());
  launcher.drain_blocking(true);
  CHECK_FALSE(worker.failure().failed());
}

TEST_CASE("a worker that cannot connect for lack of descriptors has that error, and not the job's failure") {
  FormationProcess launcher(sizes(1, 1));
  TestWorker worker(launcher.address(), 1);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{3, before.rlim_max};
  std::error_code code;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  try {
    static_cast<void>(worker.join());
  } catch (const std::system_error& error) {
    code = error.code();
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(code == std::errc::too_many_files_open);
}

TEST_CASE(
    "a launcher with a fixed number of nodes is refused by an elastic job's store, with the flags that it needs") {
  FormationProcess launcher(sizes(1, 1));
  RawClient client(launcher.address().port);
  Hello hello = RawClient::hello();
  hello.role = ClientRole::launcher;
  client.send_frame(encode(hello));
  client.send_frame(encode(RawClient::join(1, 2)));
  const auto answer = client.receive();
  REQUIRE(answer);
  REQUIRE(std::holds_alternative<Refused>(*answer));
  CHECK_CONTAINS(std::get<Refused>(*answer).sentence, "this store is an elastic job's",
                 "--nnodes=MIN:MAX or --min-ranks");
}

TEST_CASE("an exception while the store opens an attempt ends the job with its text") {
  FormationCallbacks callbacks;
  callbacks.on_attempt = [](std::uint64_t, const std::vector<WorkerId>&) {
    throw std::runtime_error("no descriptors");
  };
  FormationProcess launcher(sizes(2, 2), {}, callbacks);
  const auto errors = on_ranks(2, [&](int index) {
    TestWorker worker(launcher.address(), 100 + index);
    static_cast<void>(worker.join());
  });
  for (const std::string& error : errors) {
    CHECK_CONTAINS(error, "the job failed: opening attempt 1 of an elastic job: no descriptors");
  }
}

TEST_CASE("a worker that ends with an error tells it to the others") {
  FormationProcess launcher(sizes(1, 2));
  run_ranks(2, [&](int index) {
    TestWorker worker(launcher.address(), 100 + index);
    REQUIRE_FALSE(worker.join());
    worker.wait_for_all();
    if (index == 1) {
      worker.client.report_blocking({CauseKind::exception, -1, {}, "no such file"});
      REQUIRE(worker.failure().block_until_failed(soon()));
    } else {
      REQUIRE(worker.failure().block_until_failed(soon()));
      CHECK_CONTAINS(worker.failure().cause()->sentence(), " on host h failed: no such file");
    }
  });
}

TEST_CASE("a worker that does not know the secret, is of another job or unlike the others is refused") {
  FormationProcess launcher(sizes(1, 2), Secret::drawn());
  TestWorker first(launcher.address(), 1);
  std::thread waits([&] { static_cast<void>(first.join()); });  // for a second one

  TestWorker stranger(launcher.address(Secret::drawn()), 2);
  CHECK_ERROR(stranger.join(), Errc::refused, "its secret is not the job's");
  TestWorker bare(launcher.address(std::nullopt), 3);
  CHECK_ERROR(bare.join(), Errc::refused, "the job has a secret");
  TestWorker of_another(launcher.address(), 4);
  of_another.announce.job = 1;
  CHECK_ERROR(of_another.join(), Errc::peer_lost, "another job");  // its own has ended
  TestWorker last(launcher.address(), 6);
  std::thread joins([&] { static_cast<void>(last.join()); });
  joins.join();
  waits.join();
  CHECK(first.assignment.world_size == 2);
  TestWorker unlike(launcher.address(), 5);
  unlike.announce.settings = "kept=others\n";
  CHECK_ERROR(unlike.join(), Errc::usage, "kept=others");
  CHECK_FALSE(first.failure().failed());
}

TEST_CASE("a store that drains does not wait for a worker that it has refused") {
  FormationProcess launcher(sizes(1, 1));
  {
    TestWorker first(launcher.address(), 1);
    REQUIRE_FALSE(first.join());
    TestWorker unlike(launcher.address(), 2);
    unlike.announce.settings = "kept=others\n";
    CHECK_ERROR(unlike.join(), Errc::usage, "kept=others");
  }
  const auto limit = dtrain::Deadline::after(8s);  // it waits 10 s for workers that are connected
  launcher.drain_blocking();
  CHECK_FALSE(limit.passed());
}

TEST_CASE("workers that leave are lost, and two of them in a row do not end the job") {
  FormationOptions options = sizes(1, 3);
  options.reconnect_timeout = 100ms;
  FormationProcess launcher(options);
  run_ranks(3, [&](int index) {
    TestWorker worker(launcher.address(), 100 + index);
    for (int left = 0; left < 3; ++left) {
      REQUIRE_FALSE(worker.join());
      worker.wait_for_all();
      const int size = worker.assignment.world_size;
      CHECK(size == 3 - left);
      if (size == 1) return;
      if (worker.assignment.rank == size - 1) {
        worker.client.report_blocking({CauseKind::lost, -1, {}, "it leaves"});
        return;
      }
      REQUIRE(worker.failure().block_until_failed(soon()));
      CHECK_CONTAINS(worker.failure().cause()->sentence(), "was lost: it leaves");
      worker.control_plane.reset();
    }
  });
}

TEST_CASE("a worker that has finished long before the others says for what it waits") {
  FormationProcess launcher(sizes(2, 2));
  support::CapturedStderr captured;
  run_ranks(2, [&](int index) {
    TestWorker worker(launcher.address(), 100 + index, 30s, index == 0 ? 20ms : 10min);
    REQUIRE_FALSE(worker.join());
    worker.wait_for_all();
    if (index == 1) {
      CHECK(support::holds_soon([&] {
        return contains(captured.text(),
                        "dtrain: the function that this worker gave to train() has returned; it waits until that of "
                        "the other ranks has\n");
      }));
    }
    CHECK(worker.client.finish_blocking(1, 0, worker.failure()).has_value());
    worker.control_plane->leave_blocking(soon());
  });
}

TEST_CASE("a worker that leaves in the moment of the job's end learns that the job has finished") {
  FormationProcess launcher(sizes(2, 2));
  support::Gate is_leaving;
  support::Gate has_finished;
  run_ranks(2, [&](int index) {
    TestWorker worker(launcher.address(), 100 + index);
    REQUIRE_FALSE(worker.join());
    worker.wait_for_all();
    if (index == 1) {
      is_leaving.pass();
      CHECK(worker.client.finish_blocking(1, 0, worker.failure()).has_value());
      has_finished.open();
    } else {
      const auto leaving = std::make_shared<FailureLatch>();
      leaving->set({CauseKind::lost, 0, {}, "it leaves"});
      CHECK_FALSE(worker.client.finish_blocking(1, 0, *leaving));
      is_leaving.open();
      has_finished.pass();
      const std::optional<Finished> end = worker.client.report_blocking({CauseKind::lost, -1, {}, "it leaves"});
      REQUIRE(end.has_value());
      CHECK(end->is_member);
    }
    worker.control_plane->leave_blocking(soon());
  });
}
