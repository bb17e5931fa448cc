// What is printed of all ranks when a job fails, or when nothing moves: by a launcher, and by rank 0 where there is
// none.

#include <regex>

#include "integration/prelude.hpp"

namespace {

const std::string program = DTRAIN_TEST_PROGRAMS_DIR "/stuck_training";

/// The end of a job of three ranks under dtrain's own launcher.
Result stuck(const std::string& fault, const char* timeout = "6", std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"--nproc-per-node=3", fault};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return support::run(program, arguments, {{"DTRAIN_TIMEOUT_SECONDS", timeout}, {"DTRAIN_LIVENESS_SECONDS", "60"}});
}

/// Whether the table comes after the report of the first cause.
bool is_after_cause(const Result& result) {
  const std::size_t table = result.error.find("what each rank did");
  return table != std::string::npos && result.error.find("failed first") < table;
}

bool matches(const Result& result, const std::string& pattern) {
  return std::regex_search(result.error, std::regex(pattern));
}

/// The line of the ranks that wait in step 50.
const std::string waiting =
    "dtrain:   ranks 0 and 2 \\(host [^)]*\\), step 50: in finish\\(\\) for \\d+\\.\\d s; in all_reduce \\(average\\) "
    "of 110 "
    "f32 \\(bucket 0 of 1 in step 50\\), operation \\d+ of channel 'ddp-0', which rank 1 has not begun\n";

}  // namespace

TEST_CASE("after a timeout the table names the rank that has not come, and says what its thread does") {
  const Result reading = stuck("read");
  CHECK_MESSAGE(
      matches(reading,
              "dtrain: what each rank did when rank [02] timed out \\(rank, host, step, phase\\):\n"
              "dtrain:   rank 1 \\(host [^)]*\\), step 49: between steps for \\d\\.\\d s; its thread sleeps in "
              "read\\(\\) of pipe:\\[\\d+\\]\n" +
                  waiting),
      reading.error);
  const Result spinning = stuck("spin");
  CHECK_MESSAGE(
      matches(spinning,
              "rank 1 \\(host [^)]*\\), step 49: between steps for [^\n]*; its thread runs[^\n]*\n" + waiting),
      spinning.error);
  const Result sleeping = stuck("backward");
  CHECK_MESSAGE(matches(sleeping,
                        "rank 1 \\(host [^)]*\\), step 50: in the backward pass for [^\n]*, 1 of 2 gradients ready, "
                        "not yet parameter 0 'weight'; its thread sleeps in nanosleep\\(\\)\n" +
                            waiting),
                sleeping.error);
  const Result elsewhere = stuck("barrier");
  CHECK_MESSAGE(matches(elsewhere,
                        "rank 1 \\(host [^)]*\\), step 49: in a collective for [^\n]*; in barrier, operation \\d+ of "
                        "channel 'group', which ranks 0 and 2 have not begun\n"),
                elsewhere.error);
}

TEST_CASE("a rank that is killed has its last place in the table, and a rank that has thrown is said to have") {
  const Result killed = stuck("kill");
  CHECK(killed.exit_code == 137);
  CHECK(is_after_cause(killed));
  CHECK_MESSAGE(
      matches(killed,
              "dtrain: what each rank did when rank 1 was lost \\(rank, host, step, phase\\):\n"
              "dtrain:   rank 1 \\(host [^)]*\\), step 49: lost; \\d\\.\\d s before: between steps[^\n]*; its "
              "thread [^\n]*\n"),
      killed.error);
  const Result thrown = stuck("throw");
  CHECK(thrown.exit_code == 1);
  CHECK_MESSAGE(matches(thrown,
                        "dtrain: what each rank did when rank 1 failed \\(rank, host, step, phase\\):\n"
                        "dtrain:   rank 1 \\(host [^)]*\\), step 49: has thrown an exception\n"
                        "dtrain:   ranks 0 and 2 "),
                thrown.error);
}

TEST_CASE("a rank that is stopped is said to send nothing, and its last place is shown") {
  const Result stopped = stuck("stop");
  CHECK_MESSAGE(matches(stopped,
                        "dtrain:   rank 1 \\(host [^)]*\\), step 49: sends nothing; \\d\\.\\d s before: between "
                        "steps[^\n]*\ndtrain:   ranks 0 and 2 \\(host [^)]*\\), step 50: in finish\\(\\) for "),
                stopped.error);
}

TEST_CASE("the job's log has once which rank's gradient was not finite") {
  const Result result = stuck("nan");
  CHECK(result.exit_code == 0);
  CHECK(result.error ==
        "dtrain: rank 1: the gradient of parameter 1 'bias' has nan at [7] in step 15; the weights were finite\n");
}

TEST_CASE("a rank that has left out an update is named while the job trains, and at its end") {
  const Result result = stuck("optimizer");
  CHECK(result.exit_code == 0);
  CHECK_CONTAINS(
      result.error,
      "dtrain: the ranks' values of the model differ after 48 steps: rank 1 has other values than ranks 0 and "
      "2; a rank left out a step or an update");
  CHECK_CONTAINS(result.error,
                 "dtrain: the ranks' values of the model differed when its DistributedDataParallel ended");
}

TEST_CASE("the operations of a topology are in the table by their kinds") {
  const Result result = stuck("read", "6", {"hierarchical"});
  CHECK_MESSAGE(
      matches(result,
              "ranks 0 and 2 \\(host [^)]*\\), step 50: in finish\\(\\) for [^\n]*; in all_reduce, operation \\d+ of "
              "channel 'ddp-0', which rank 1 has not begun\n"),
      result.error);
}

TEST_CASE("before the timeout, a table says after ten seconds which ranks wait") {
  const Result result = stuck("read", "13");
  CHECK_MESSAGE(
      matches(
          result,
          "^dtrain: rank[s02 and]* ha(s|ve) waited for 10\\.0 s; what each rank does \\(rank, host, step, phase\\):\n"
          "dtrain:   rank 1 \\(host [^)]*\\), step 49: between steps for \\d+\\.\\d s; its thread sleeps in read"),
      result.error);
  CHECK(support::count_of(result.error, " waited for 10.0 s") == 1);
  CHECK_FALSE(contains(result.error, "still waits in"));
}

TEST_CASE("a job that ends well prints no table") {
  const Result result = stuck("nothing");
  CHECK(result.exit_code == 0);
  CHECK(result.error == "");
}

TEST_CASE("without a launcher rank 0 prints the table, also where a rank is killed") {
  const std::string port = std::to_string(support::free_port());
  const auto variables = [&](const char* rank) {
    return Program::Variables{{"RANK", rank},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_RANK", rank},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", port},
                              {"DTRAIN_TIMEOUT_SECONDS", "6"}};
  };
  for (const char* const fault : {"kill", "read"}) {
    CAPTURE(fault);
    Program first(program, {fault}, variables("0"));
    Program second(program, {fault}, variables("1"));
    const Result result = first.wait();
    CHECK(result.exit_code != 0);
    CHECK_MESSAGE(matches(result,
                          "dtrain: what each rank did when rank [01] [a-z ]* \\(rank, host, step, phase\\):\n"
                          "dtrain:   rank 1 \\(host [^)]*\\), step 49: [^\n]*between steps[^\n]*\n"
                          "dtrain:   rank 0 \\(host [^)]*\\), step 50: in finish\\(\\)"),
                  result.error);
  }
}

TEST_CASE(
    "a process that asks gets what each rank does, of one job or of all, and a job that is ended prints no table") {
  for (const int signal : {SIGINT, SIGTERM}) {
    CAPTURE(signal);
    Program job(program, {"--nproc-per-node=3", "read"});
    REQUIRE(job.wait_for("rank 1 comes to step 50"));
    const std::string process = std::to_string(job.process());
    const dtrain::Deadline deadline = support::soon();
    Result answer;
    do {
      answer = support::run(program, {"--status=" + process});
      REQUIRE(answer.exit_code == 0);
    } while (!contains(answer.output, "sleeps in read() of pipe:") && !deadline.passed());
    CHECK_MESSAGE(
        std::regex_search(answer.output,
                          std::regex("^the job of process " + process +
                                     ": 3 ranks, 0\\.0 steps a second \\(rank, host, step, phase\\)\n"
                                     "  rank 1 \\(host [^)]*\\), step 49: between steps[^\n]*; its thread sleeps "
                                     "in read[^\n]*\n"
                                     "  ranks 0 and 2 \\(host [^)]*\\), step 50: in finish\\(\\)")),
        answer.output);
    CHECK_CONTAINS(support::run(program, {"--status"}).output, "the job of process " + process + ": 3 ranks");
    job.signal(signal);
    const Result ended = job.wait();
    CHECK(ended.exit_code == 128 + signal);
    CHECK_FALSE(contains(ended.error, "what each rank did"));
    const Result gone = support::run(program, {"--status=" + process});
    support::check_ended(gone, 1, {"process " + process + " hosts no job's store on this host; give the launcher's"});
  }
}

TEST_CASE("a job that fails in its first second has a table, too, and a rank that leaves is in it") {
  const Result early = stuck("early");
  CHECK_MESSAGE(matches(early,
                        "dtrain: what each rank did when rank 1 failed \\(rank, host, step, phase\\):\n"
                        "(dtrain:   rank.*\n)*dtrain:   rank 1 \\(host [^)]*\\), step 2: has thrown an exception\n"),
                early.error);
  for (const char* const rank : {"0", "2"})  // which may not have left step 2 yet
    CHECK_MESSAGE(
        matches(early, std::string("dtrain:   ranks? (0 and )?") + rank + " (and 2 )?\\(host [^)]*\\), step [23]: "),
        early.error);
  const Result left = stuck("leave");
  CHECK(left.exit_code != 0);
  CHECK_MESSAGE(matches(left, "dtrain: what each rank did when [^\n]* \\(rank, host, step, phase\\):\n"), left.error);
}
