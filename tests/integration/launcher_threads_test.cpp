// ctest: TIMEOUT 120 RUN_SERIAL ON
// launch::PerNode in a process that has other threads before main, which block no signal: launch_probe is linked with
// the library early_threads, and launcher and workers have such a thread.

#include "integration/prelude.hpp"

namespace {

const Program::Variables early{{"PROBE_EARLY_THREAD", "1"}};

}  // namespace

TEST_CASE("a process with threads becomes a launcher of one rank, and of several") {
  for (const int ranks : {1, 2}) {
    const Result result = support::run(
        probe, {"--nproc-per-node=" + std::to_string(ranks), "*:join", "*:early-threads", "*:stdout:here\n"}, early);
    support::check_quiet(result);
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK_CONTAINS(result.output, "[" + std::to_string(rank) + "] 1 threads before main\n",
                     "[" + std::to_string(rank) + "] here\n");
    }
  }
}

TEST_CASE("signals to a launcher with threads reach the workers, once each") {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    CAPTURE(signal);
    Program program(probe,
                    {"--nproc-per-node=2", "*:join", "*:say-signal:" + std::to_string(signal), "*:stdout:up\n", "*:cat",
                     "*:sleep:60000"},
                    early);
    support::require_up(program, 2);
    program.signal(signal);
    CHECK(program.wait_for("[0] got the signal"));
    CHECK(program.wait_for("[1] got the signal"));
    program.signal(SIGKILL);
    const Result result = program.wait();
    CHECK(result.output.find("[0] got the signal") == result.output.rfind("[0] got the signal"));
  }
}

TEST_CASE("SIGTERM ends the job in order, and a second signal kills workers that stay") {
  const std::string mark = new_mark();
  Program orderly(probe, {mark, "--nproc-per-node=2", "*:join", "*:on-term:21", "*:stdout:up\n", "*:sleep:60000"},
                  early);
  support::require_up(orderly, 2);
  orderly.signal(SIGTERM);
  support::check_ended(orderly.wait(), 21, {"SIGTERM was forwarded"});
  Program stubborn(
      probe, {mark, "--nproc-per-node=2", "*:join", "*:ignore:15", "*:say-signal:2", "*:stdout:up\n", "*:sleep:60000"},
      early);
  support::require_up(stubborn, 2);
  stubborn.signal(SIGINT);
  CHECK(stubborn.wait_for("[0] got the signal"));
  stubborn.signal(SIGTERM);
  CHECK(stubborn.wait().exit_code == 137);
  CHECK(support::processes_with(mark).empty());
}

TEST_CASE("SIGTSTP stops a launcher with threads and its workers, and SIGCONT lets them go on") {
  const support::TemporaryFile file;
  Program program(probe, {"--nproc-per-node=1", "0:process:" + file.path, "*:stdout:up\n", "*:cat"}, early);
  REQUIRE(program.wait_for("[0] up"));
  const auto worker = static_cast<pid_t>(std::stoi(content(file.path)));
  program.signal(SIGTSTP);
  CHECK(reaches_state(program.process(), "T"));
  CHECK(reaches_state(worker, "T"));
  program.signal(SIGCONT);
  CHECK(reaches_state(worker, "RS"));
  for (const int signal : {SIGPIPE, SIGTTIN, SIGTTOU, SIGXFSZ}) {  // which end or stop a process that does not say more
    program.signal(signal);
  }
  program.write_input("on we go\n");
  CHECK(program.wait_for("[0] on we go"));
}

TEST_CASE("a killed worker of a launcher with threads ends the job within two seconds, and a restart heals it") {
  const std::string mark = new_mark();
  const Result lost =
      support::run(probe, {mark, "--nproc-per-node=2", "*:join", "1:raise:9", "*:wait-for-failure"}, early);
  support::check_ended(lost, 137, {"rank 1 on host ", "killed by signal 9 (SIGKILL)"});
  CHECK(lost.time < two_seconds + two_seconds);
  const Result healed = support::run(
      probe, {mark, "--nproc-per-node=2", "--max-restarts=1", "*:join", "1@0:raise:9", "*@0:wait-for-failure"}, early);
  support::check_ended(healed, 0, {"dtrain: attempt 2 of 2 begins: rank 1 on host "});
  CHECK(support::processes_with(mark).empty());
}

TEST_CASE("no worker survives a launcher with threads that is killed") {
  const std::string mark = new_mark();
  Program program(probe, {mark, "--nproc-per-node=2", "*:ignore:15", "*:join", "*:stdout:up\n", "*:sleep:60000"},
                  early);
  support::require_up(program, 2);
  program.signal(SIGKILL);
  CHECK(program.wait().exit_code == 137);
  CHECK(support::all_gone(mark, support::soon()));
}

TEST_CASE("a thread other than main becomes the launcher") {
  const Program::Variables on_thread{{"PROBE_RUN_ON_THREAD", "1"}};
  Program program(probe, {"--nproc-per-node=2", "*:join", "*:stdout:up\n", "*:sleep:60000"}, on_thread);
  support::require_up(program, 2);
  program.signal(SIGTERM);
  support::check_ended(program.wait(), 128 + SIGTERM, {"SIGTERM was forwarded"});
}

TEST_CASE("a process in which CUDA has a context does not become a launcher") {
  const Result result =
      support::run(probe, {"0:stdout:started"},
                   {{"PROBE_EARLY_LIBRARY", DTRAIN_TEST_PROGRAMS_DIR "/fake_cuda_driver/libcuda.so.1"}});
  support::check_ended(result, 2, {"CUDA has a context in this process already", "first statement of main"});
  CHECK(result.output == "");
}

TEST_CASE("a process in which MPI is initialised does not become a launcher") {
  // Open MPI keeps memory when a process ends without MPI_Finalize.
  const Result result =
      support::run(probe, {"0:stdout:started"}, {{"PROBE_EARLY_MPI", "1"}, {"LSAN_OPTIONS", "detect_leaks=0"}});
  if (contains(result.error, "built without MPI")) return dtrain_test::skip("MPI is not installed");
  support::check_ended(result, 2, {"MPI is initialised in this process already", "first statement of main"});
  CHECK(result.output == "");
}
