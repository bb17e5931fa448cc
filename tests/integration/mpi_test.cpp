// Jobs over MPI under mpirun: what they compute, and how they end when a rank fails.
// ctest: LABELS no-tsan
// What Open MPI itself never frees is no leak of dtrain's:
// ctest: ENVIRONMENT LSAN_OPTIONS=detect_leaks=0
// ctest: TIMEOUT 360

#include "integration/prelude.hpp"
#include "support/mpirun.hpp"

using support::find_program;
using support::is_false_report;
using support::mpirun;
using support::started;

namespace {

const std::string mpi_probe = DTRAIN_TEST_PROGRAMS_DIR "/mpi_probe";

/// The probe on that many ranks; `what` is its argument.
Result job(int ranks, const std::string& what, const Program::Variables& variables = {}) {
  return started(mpirun, {"--oversubscribe", "-n", std::to_string(ranks), mpi_probe, what}, variables);
}

/// The major version of Open MPI; 0 for another MPI.
int open_mpi_version() {
  const std::string version = started(mpirun, {"--version"}).output;
  for (const std::string name : {"(Open MPI) ", "(OpenRTE) "}) {  // OpenRTE: mpiexec of Open MPI 4
    if (const std::size_t at = version.find(name); at != std::string::npos) {
      return std::stoi(version.substr(at + name.size()));
    }
  }
  return 0;
}

/// As job(), for a job in which a rank fails. Open MPI 5's launcher would end the other ranks 250 ms later, before each
/// has named the cause; here it leaves them to dtrain.
Result failing_job(int ranks, const std::string& what) {
  std::vector<std::string> arguments{"--oversubscribe", "-n", std::to_string(ranks), mpi_probe, what};
  if (open_mpi_version() >= 5) {
    arguments.insert(arguments.begin(), {"--runtime-options", "recoverable"});
  }
  return started(mpirun, arguments);
}

/// Every rank has said that its results were right, and that MPI was finalized.
void check_all_right(const Result& result, int ranks) {
  CAPTURE(ranks);
  CAPTURE(result.error);
  const auto all = static_cast<std::size_t>(ranks);
  CHECK(support::count_of(result.output, "all right") == all);
  CHECK(support::count_of(result.output, "has finalized MPI") == all);
  if (result.exit_code != 0 && is_false_report(result)) {
    MESSAGE("mpirun says that a rank did not call MPI_Finalize, but each did");
  } else {
    CHECK(result.exit_code == 0);
  }
}

TEST_CASE("one to four ranks compute every collective over MPI, in groups and in crossed channels") {
  SKIP_WITHOUT_MPI();
  for (const int ranks : {1, 2, 3, 4}) {
    for (const char* what : {"collectives", "crossed"}) {
      CAPTURE(what);
      check_all_right(job(ranks, what), ranks);
    }
  }
}

TEST_CASE(
    "device memory goes over MPI: ranks that share a device compute every collective, train, and end with the job") {
  SKIP_WITHOUT_MPI();
  const auto staged = [](int ranks, const char* what) {
    return started(mpirun,
                   {"--oversubscribe", "-n", std::to_string(ranks), DTRAIN_TEST_PROGRAMS_DIR "/staged_mpi_probe", what},
                   {{"DTRAIN_SHARE_DEVICES", "1"}});
  };
  for (const int ranks : {2, 3}) {
    for (const char* what : {"collectives", "training"}) {
      CAPTURE(what);
      const Result result = staged(ranks, what);
      if (contains(result.output, "built without")) {
        return dtrain_test::skip("no headers of CUDA were found when the programs were built");
      }
      check_all_right(result, ranks);
    }
  }
  const Result killed = staged(3, "kill");
  support::check_failed(killed, {"rank 1"});
}

TEST_CASE("one, three and four ranks compute every collective with MPI's own, in groups and in crossed channels") {
  SKIP_WITHOUT_MPI();
  for (const int ranks : {1, 3, 4}) {
    for (const char* what : {"own_collectives", "own_crossed", "own_averages"}) {
      CAPTURE(what);
      check_all_right(job(ranks, what), ranks);
    }
  }
}

TEST_CASE(
    "averages of large values over more ranks than reduce at once are right, by dtrain's algorithms and MPI's own") {
  SKIP_WITHOUT_MPI();
  for (const int ranks : {4, 9, 10}) {
    for (const char* what : {"large", "own_large"}) {
      CAPTURE(what);
      check_all_right(job(ranks, what), ranks);
    }
  }
}

TEST_CASE("MPI's own collectives end with the job, although MPI cannot cancel them") {
  SKIP_WITHOUT_MPI();
  const Result killed = failing_job(3, "own_kill");
  CAPTURE(killed.error);
  support::check_failed(killed, {"ends because rank 1 on host", "was lost"});
  const Result stopped = job(2, "own_stop", {{"DTRAIN_TIMEOUT_SECONDS", "4"}});
  CAPTURE(stopped.error);
  CHECK_CONTAINS(stopped.error, "timed out: all_reduce (average) of 2000000 f32, operation 21 of channel 'group'",
                 "it had not ended after 4000 ms");
  CHECK(stopped.exit_code != 0);
}

TEST_CASE("MPI's own collectives promise no bits, which deterministic training is refused for") {
  SKIP_WITHOUT_MPI();
  const Result refused = job(2, "own_deterministic");
  CAPTURE(refused.error);
  support::check_failed(refused, {"DdpOptions::deterministic is set, but backend MpiCollectives does not promise"});
  CHECK(job(2, "deterministic").exit_code == 0);
}

TEST_CASE("a killed rank ends the others within 2 s, and they name it") {
  SKIP_WITHOUT_MPI();
  const Result well = job(3, "hello");
  CHECK(well.exit_code == 0);
  const Result result = failing_job(3, "kill");
  CAPTURE(result.error);
  support::check_failed(result, {"ends because rank 1 on host", "was lost"});
  CHECK(result.time <
        well.time + std::chrono::seconds(support::is_sanitized ? 12 : 4));  // twenty steps, 2 s, and a busy machine
}

TEST_CASE("an exception on one rank is what all ranks say") {
  SKIP_WITHOUT_MPI();
  const Result result = failing_job(3, "throw");
  CAPTURE(result.error);
  CHECK_CONTAINS(result.error, "dtrain: rank 1: rank 1 has had enough", "failed: rank 1 has had enough");
  CHECK(result.exit_code != 0);
}

TEST_CASE("Open MPI's mpirun by itself names the first rank that died, and ends with its exit code") {
  SKIP_WITHOUT_MPI();
  if (open_mpi_version() == 0) return dtrain_test::skip("mpirun is not Open MPI's");
  const Result well = job(3, "hello");
  const Result killed = job(3, "kill");
  CAPTURE(killed.error);
  support::check_ended(killed, 128 + SIGKILL, {"process rank 1 ", "signal 9 (Killed)"});
  CHECK(killed.time < well.time + std::chrono::seconds(support::is_sanitized ? 12 : 4));
  const Result threw = job(3, "throw");
  CAPTURE(threw.error);
  CHECK((threw.exit_code == 1 || threw.exit_code == 75));  // of whichever rank ends first
  CHECK_CONTAINS(threw.error, "dtrain: rank 1: rank 1 has had enough");
}

TEST_CASE("ranks that reduce different counts learn what each called, instead of waiting") {
  SKIP_WITHOUT_MPI();
  const Result result = job(3, "other_count");
  support::check_ended(result, 75,
                       {"called all_reduce (average) of 1999999 f32", "called all_reduce (average) of 2000000 f32"});
}

TEST_CASE("a rank that leaves while others reduce is named") {
  SKIP_WITHOUT_MPI();
  const Result result = job(2, "leave");
  support::check_ended(result, 75, {"rank 1 has left the channel"});
}

TEST_CASE("a rank that leaves with work that has not run is named, and all may leave so") {
  SKIP_WITHOUT_MPI();
  support::check_ended(job(2, "drop"), 75, {"rank 1 has left the channel"});
  check_all_right(job(3, "drop_all"), 3);
}

TEST_CASE("a rank that does not come is waited for until the timeout, and named") {
  SKIP_WITHOUT_MPI();
  const Result result = job(2, "stop", {{"DTRAIN_TIMEOUT_SECONDS", "4"}});
  CAPTURE(result.error);
  CHECK_CONTAINS(result.error, "timed out: all_reduce (average) of 2000000 f32, operation 21 of channel 'group'",
                 "rank 1 had not sent its part after 4000 ms");
  CHECK(result.exit_code != 0);
}

TEST_CASE("without any launcher a program over MPI with launch::Any is rank 0 of 1, and it refuses to start ranks") {
  SKIP_WITHOUT_MPI();
  support::check_printed(started(mpi_probe, {"hello"}), {"rank 0 of 1: sum 0\n"});
  support::check_ended(started(mpi_probe, {"hello", "--nproc-per-node=2"}), 2,
                       {"backend::Mpi takes its ranks from mpirun or srun: mpirun -n 4 ./train; leave "
                        "--nproc-per-node=2 out"});
}

TEST_CASE("without mpirun the error names what the environment says, what MPI says, and the remedy") {
  SKIP_WITHOUT_MPI();
  Program::Variables variables{
      {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", std::to_string(support::free_port())}};
  std::vector<std::unique_ptr<Program>> processes;
  variables.insert({{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  for (int rank = 0; rank < 2; ++rank) {
    variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
    processes.push_back(std::make_unique<Program>(mpi_probe, std::vector<std::string>{"hello"}, variables));
  }
  for (const auto& process : processes) {
    const Result result = process->wait(support::soon());
    support::check_ended(result, 2, {"of 2, but MPI_COMM_WORLD says rank 0 of 1", "mpirun -n 2 PROGRAM"});
  }
}

TEST_CASE("a program that initialised MPI itself keeps it, if it did so for many threads") {
  SKIP_WITHOUT_MPI();
  const Result well = job(2, "user_multiple");
  CAPTURE(well.error);
  CHECK(well.exit_code == 0);
  CHECK(support::count_of(well.output, ": sum 1\n") == 2);
  CHECK(support::count_of(well.output, "MPI still counts 2\n") == 2);
  const Result refused = job(2, "user_single");
  support::check_failed(refused, {"MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided)"});
}

TEST_CASE("a second process group after one that failed says why there is none") {
  SKIP_WITHOUT_MPI();
  const Result result = job(1, "again");  // which mpirun calls a failure: MPI was not ended
  CAPTURE(result.error);
  CHECK_CONTAINS(result.output, "an earlier process group of this process ended in a failure");
}

TEST_CASE("a call to MPI that hangs ends the process soon after the timeout, whoever initialised MPI") {
  SKIP_WITHOUT_MPI();
  for (const char* what : {"hang", "user_hang"}) {
    CAPTURE(what);
    Program program(
        mpirun, {"--oversubscribe", "-n", "2", mpi_probe, what},
        {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}, {"DTRAIN_TIMEOUT_SECONDS", "2"}});
    program.close_input();
    REQUIRE(program.wait_for("hangs from now on", support::soon(std::chrono::seconds(60))));
    const auto begin = std::chrono::steady_clock::now();
    const Result result = program.wait(support::soon(std::chrono::seconds(60)));
    CHECK_CONTAINS(result.error, "a call to MPI does not return: this process ends here");
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(8));  // 3 in most runs
  }
}

TEST_CASE("a second attempt to start MPI, while the first one hangs in it, says why there is none") {
  SKIP_WITHOUT_MPI();
  const Result result = started(mpi_probe, {"late"});
  support::check_printed(result, {"MPI_Init_thread did not return in time",
                                  "an earlier process group of this process ended in a failure"});
}

TEST_CASE("a program of one MPI under another's launcher says so") {
  SKIP_WITHOUT_MPI();
  const std::string mpiexec = find_program("mpiexec.mpich");
  if (mpiexec.empty() || !contains(started(mpirun, {"--version"}).output, "Open MPI")) {
    return dtrain_test::skip("MPICH's mpiexec beside an Open MPI that the tests are built with is not installed");
  }
  const Result result = started(mpiexec, {"-n", "2", mpi_probe, "hello"});
  CAPTURE(result.error);
  CAPTURE(result.output);
  CHECK(result.exit_code != 0);
  CHECK_CONTAINS(result.error + result.output, "of 2, but MPI_COMM_WORLD says rank 0 of 1");
  CHECK_CONTAINS(result.error + result.output, "linked with Open MPI");
}

}  // namespace
