// ctest: TIMEOUT 120 RUN_SERIAL ON
// --max-restarts of launch::PerNode on one node, with real processes.

#include "integration/prelude.hpp"

TEST_CASE("failed workers are started again as often as allowed, all of them, and a line says so") {
  const Result healed =
      support::run(probe, {"--nproc-per-node=2", "--max-restarts=3", "*:join", "1@0:exit:3", "1@1:raise:9",
                           "*@0:wait-for-failure", "*@1:wait-for-failure", "*:environment:DTRAIN_ATTEMPT"});
  support::check_ended(healed, 0,
                       {"dtrain: attempt 2 of 4 begins: rank 1 on host ", "failed first: exit code 3\n",
                        "dtrain: attempt 3 of 4 begins: rank 1 on host "});
  CHECK(!contains(healed.error, "attempt 4 of 4"));
  CHECK_CONTAINS(healed.output, "[0] DTRAIN_ATTEMPT=2\n", "[1] DTRAIN_ATTEMPT=2\n");
  const Result hopeless = support::run(probe, {"--nproc-per-node=2", "--max-restarts=2", "*:join", "0@0:exit:3",
                                               "0@1:exit:4", "0@2:exit:5", "*:wait-for-failure"});
  support::check_ended(hopeless, 5, {"attempt 3 of 3 begins"});
  CHECK(!contains(hopeless.error, "attempt 4"));
}

TEST_CASE("before a restart all workers are stopped, also those that ignore SIGTERM and what they have started") {
  const std::string mark = new_mark();
  const Result result =
      support::run(probe, {mark, "--nproc-per-node=3", "--max-restarts=1", "*@0:ignore:15", "*@0:grandchild", "*:join",
                           "0@0:exit:9", "*@0:sleep:60000", "*:stdout:again\n"});
  CHECK(result.exit_code == 0);
  CHECK(lines_of(result.output).size() == 3);
  CHECK(result.time < two_seconds + two_seconds);
  CHECK(support::processes_with(mark).empty());
}

TEST_CASE("a usage error is not tried again") {
  const Result result = support::run(probe, {"--nproc-per-node=2", "--max-restarts=5", "*:join", "*:exit:2"});
  CHECK(result.exit_code == 2);
  CHECK(!contains(result.error, "attempt 2"));
}

TEST_CASE("a job that a signal ends is not started again, before or while its workers fail") {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    CAPTURE(signal);
    // UCX, which Open MPI 5 is linked with, makes SIGHUP switch its debug mode on, unless this variable says otherwise.
    Program program(probe, {"--nproc-per-node=2", "--max-restarts=5", "*:join", "*:stdout:up\n", "*:sleep:60000"},
                    {{"UCX_DEBUG_SIGNO", "0"}});
    support::require_up(program, 2);
    program.signal(signal);
    const Result result = program.wait();
    CHECK(result.exit_code == 128 + signal);
    CHECK(!contains(result.error, "attempt 2"));
  }
  const TemporaryDirectory root;
  const std::string joined = root.path + "/joined";  // rank 1 has: if rank 0 failed before, rank 1's join would fail
  const Result result =
      support::run(probe, {"--nproc-per-node=2", "--max-restarts=5", "*:ignore:15", "*:join", "1:process:" + joined,
                           "0:await:" + joined, "0:exit:4", "1:signal-launcher-after-failure:15", "1:sleep:60000"});
  CHECK(result.exit_code == 4);
  CHECK(!contains(result.error, "attempt 2"));
}

TEST_CASE("each attempt keeps its log files") {
  const TemporaryDirectory root;
  const Result result = support::run(
      probe, {"--nproc-per-node=2", "--max-restarts=2", "--log-dir=" + root.path, "*:join", "*@0:stdout:zero\n",
              "*@1:stdout:one\n", "*@2:stdout:two\n", "*@0:sleep:100", "*@1:sleep:100", "1@0:exit:3", "1@1:exit:3",
              "*@0:wait-for-failure", "*@1:wait-for-failure"});
  CHECK(result.exit_code == 0);
  CHECK(content(root.path + "/rank-0.stdout") == "zero\n");
  CHECK(content(root.path + "/attempt-1/rank-0.stdout") == "one\n");
  CHECK(content(root.path + "/attempt-2/rank-1.stdout") == "two\n");
  CHECK_CONTAINS(content(root.path + "/rank-0.stderr"), "cause: rank 1 on host ");
}

TEST_CASE("stdin goes on where a failed attempt has stopped reading") {
  Program program(probe, {"--nproc-per-node=1", "--max-restarts=1", "*:join", "*:read-line", "0@0:exit:3"});
  program.write_input("first\n");
  REQUIRE(program.wait_for("attempt 2 of 2"));
  program.write_input("second\n");
  const Result result = program.wait();
  support::check_printed(result, {"[0] read first\n[0] read second\n"});
}
