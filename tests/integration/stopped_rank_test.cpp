// ctest: TIMEOUT 120
// Under ThreadSanitizer unit.rendezvous.flow and .failure have the same heartbeats, with ranks as threads.
// ctest: LABELS no-tsan
// A rank that is stopped (SIGSTOP), neither dead nor alive: who notices, and what they say.

#include "dtrain/core/cause.hpp"
#include "integration/prelude.hpp"

namespace {

/// Starts three ranks, stops rank 1 once `ready` has been printed three times, and waits for the end of the job.
Result with_rank_1_stopped(const std::string& path, std::vector<std::string> arguments,
                           const Program::Variables& variables, const std::string& ready) {
  arguments.insert(arguments.begin(), "--nproc-per-node=3");
  Program program(path, std::move(arguments), variables);
  program.close_input();
  REQUIRE(program.wait_for(ready, support::soon(std::chrono::seconds(60))));
  const std::vector<pid_t> workers = support::children_of(program.process());
  REQUIRE(workers.size() == 3);
  REQUIRE(::kill(workers[1], SIGSTOP) == 0);
  return program.wait();
}

}  // namespace

TEST_CASE("a stopped rank counts as lost after the liveness time, on every rank, and the job ends") {
  const Result result = with_rank_1_stopped(DTRAIN_TEST_PROGRAMS_DIR "/launch_probe",
                                            {"*:join", "0:stdout:joined\n", "*:wait-for-failure"},
                                            {{"DTRAIN_LIVENESS_SECONDS", "1"}}, "[0] joined");
  INFO(result.error);
  for (const std::string rank : {"[0] ", "[2] "})
    CHECK_CONTAINS(result.error, rank + "cause: rank 1 on host ");
  CHECK_CONTAINS(
      result.error,
      "was lost: it has sent nothing for 1.0 s (it is stopped or gets too little processor time, or its host");
  CHECK(result.exit_code != 0);
  CHECK(result.exit_code != -1);  // it ended by itself
}

TEST_CASE("a worker that is stopped before it has joined counts as lost after the liveness time, too") {
  const support::TemporaryDirectory directory;
  const Result result = with_rank_1_stopped(
      support::probe, {"1:stdout:up\n", "1:await:" + directory.path + "/never", "*:join", "*:wait-for-failure"},
      {{"DTRAIN_LIVENESS_SECONDS", "1"}}, "[1] up");
  INFO(result.error);
  for (const std::string rank : {"[0] ", "[2] "})
    CHECK_CONTAINS(result.error, rank + "cause: rank 1 on host ");
  CHECK_CONTAINS(result.error, "was lost: its process ",
                 " was stopped by SIGSTOP before it had joined the job, and has not gone on for 1.0 s; if the stop is "
                 "intended, raise DTRAIN_LIVENESS_SECONDS");
  CHECK(result.exit_code == dtrain::exit_code_job_failed);
}

TEST_CASE("a worker that is stopped before it has joined, and goes on, joins") {
  const support::TemporaryFile file;
  Program program(support::probe, {"--nproc-per-node=2", "1:stdout:up\n", "1:await:" + file.path, "*:join"});
  program.close_input();
  REQUIRE(program.wait_for("[1] up"));
  const std::vector<pid_t> workers = support::children_of(program.process());
  REQUIRE(workers.size() == 2);
  REQUIRE(::kill(workers[1], SIGSTOP) == 0);
  CHECK(support::reaches_state(workers[1], "T"));
  std::ofstream(file.path) << std::flush;
  REQUIRE(::kill(workers[1], SIGCONT) == 0);
  const Result result = program.wait();
  support::check_quiet(result);
}

TEST_CASE("where a collective's timeout comes first, it names the operation, who had come and who had not") {
  const std::string example = DTRAIN_EXAMPLES_DIR "/fashion_mnist";
  if (!std::filesystem::exists(example) || !std::filesystem::exists("/usr/share/datasets/fashion-mnist")) {
    return dtrain_test::skip("fashion_mnist or its data (the package dataset-fashion-mnist) is missing");
  }
  const Result result = with_rank_1_stopped(
      example, {"--epochs=1000"}, {{"DTRAIN_TIMEOUT_SECONDS", "6"}, {"DTRAIN_LIVENESS_SECONDS", "60"}}, "epoch");
  INFO(result.error);
  CHECK_CONTAINS(result.error, "all_reduce (average) of ", "rank 1 had not arrived after 6000 ms; ranks 0 and 2 had");
  CHECK(result.exit_code != 0);
  CHECK(result.exit_code != -1);
}
