// Elastic jobs of processes: workers are killed and stopped, and the others go on.

#include <regex>

#include "integration/prelude.hpp"
#include "support/worker_process.hpp"

using support::Program;
using support::Result;

namespace {

const std::string program = std::string(DTRAIN_TEST_PROGRAMS_DIR) + "/elastic_training";

/// The digests with which workers finished, by rank, as "R of N: D after S steps".
std::vector<std::string> ends(const std::string& output) {
  std::vector<std::string> found;
  const std::regex line("finished as rank (\\d+) of (\\d+): (\\w+) after (\\d+) steps");
  for (std::sregex_iterator i(output.begin(), output.end(), line), end; i != end; ++i) {
    found.push_back((*i)[3].str() + " after " + (*i)[4].str());
  }
  return found;
}

/// The ranks other than `lost` have committed each step, with the same weights. What only a lost rank has committed is
/// done again by the others.
void check_commits(const std::string& output, int lost, int steps) {
  std::map<int, std::set<std::string>> digests;
  const std::regex line("\\[(\\d+)\\] commit (\\d+) attempt \\d+ size \\d+ digest (\\w+)");
  for (std::sregex_iterator i(output.begin(), output.end(), line), end; i != end; ++i) {
    if (std::stoi((*i)[1].str()) != lost) digests[std::stoi((*i)[2].str())].insert((*i)[3].str());
  }
  CHECK(digests.size() == static_cast<std::size_t>(steps));
  for (const auto& each : digests) {
    CAPTURE(each.first);
    CHECK(each.second.size() == 1);
  }
}

}  // namespace

TEST_CASE("without --min-ranks an elastic program is an ordinary job, and with it all ranks finish") {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, std::vector<std::string>{"--min-ranks=2"}}) {
    std::vector<std::string> arguments{"--nproc-per-node=3", "steps=20", "pause=1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    Program job(program, arguments);
    const Result result = job.wait();
    CHECK_MESSAGE(result.exit_code == 0, result.error);
    const std::vector<std::string> digests = ends(result.output);
    REQUIRE_MESSAGE(digests.size() == 3, result.output << result.error);
    CHECK(digests[0] == digests[1]);
    CHECK(digests[0] == digests[2]);
  }
}

TEST_CASE("a killed worker's ranks go on without it, and another one takes its place") {
  for (const char* const kind : {"plain", "bound", "thread", "gloo"}) {
    for (const int victim : {0, 2}) {
      CAPTURE(kind);
      CAPTURE(victim);
      Program job(program, {"--nproc-per-node=4", "--min-ranks=2", "--max-restarts=3", "steps=500", "log", kind});
      REQUIRE(job.wait_for("commit 20 attempt 1 size 4"));
      REQUIRE(::kill(support::process_of_worker(job.output(), victim), SIGKILL) == 0);
      const Result result = job.wait(support::soon(std::chrono::seconds(60)));
      support::check_ended(result, 0, {"worker " + std::to_string(victim) + " was lost: killed by signal 9"});
      CHECK(support::count_of(result.output, "worker " + std::to_string(victim) + " is rank") >= 2);
      const std::vector<std::string> digests = ends(result.output);
      REQUIRE_MESSAGE(digests.size() == 4, result.output << result.error);
      CHECK(std::set<std::string>(digests.begin(), digests.end()).size() == 1);
      check_commits(result.output, victim, 500);
    }
  }
}

TEST_CASE_FIXTURE(support::TemporaryFile, "a sharded training whose worker is killed goes on from its checkpoint") {
  Program undisturbed(program, {"--nproc-per-node=2", "steps=400", "pause=0", "sharded=" + path + ".undisturbed"});
  const Result whole = undisturbed.wait(support::soon(std::chrono::seconds(60)));
  REQUIRE_MESSAGE(whole.exit_code == 0, whole.error);
  const std::vector<std::string> expected = ends(whole.output);
  REQUIRE(expected.size() == 2);
  for (const int victim : {0, 1}) {
    CAPTURE(victim);
    Program job(program, {"--nproc-per-node=2", "--min-ranks=1", "--max-restarts=3", "steps=400", "log",
                          "sharded=" + path + std::to_string(victim)});
    REQUIRE(job.wait_for("commit 25 attempt 1 size 2"));
    REQUIRE(::kill(support::process_of_worker(job.output(), victim), SIGKILL) == 0);
    const Result result = job.wait(support::soon(std::chrono::seconds(60)));
    CHECK_MESSAGE(result.exit_code == 0, result.error);
    CHECK(support::count_of(result.output, "worker " + std::to_string(victim) + " is rank") >= 2);
    CHECK_MESSAGE(ends(result.output) == expected, result.output << result.error);
  }
}

TEST_CASE("a worker that is stopped is left out, and comes back as a newcomer") {
  Program job(program, {"--nproc-per-node=3", "--min-ranks=1", "steps=800", "log"}, {{"DTRAIN_LIVENESS_SECONDS", "1"}});
  REQUIRE(job.wait_for("commit 20 attempt 1 size 3"));
  const pid_t stopped = support::process_of_worker(job.output(), 1);
  ::kill(stopped, SIGSTOP);
  CHECK(job.wait_for("size 2 digest"));
  ::kill(stopped, SIGCONT);
  const Result result = job.wait(support::soon(std::chrono::seconds(60)));
  CHECK_MESSAGE(result.exit_code == 0, result.error);
  const std::vector<std::string> digests = ends(result.output);
  REQUIRE_MESSAGE(digests.size() == 3, result.output << result.error);
  CHECK(std::set<std::string>(digests.begin(), digests.end()).size() == 1);
}

TEST_CASE("a worker's own error ends the worker, and the others go on") {
  for (const char* const mistake : {"throw=30", "torn=30", "swallow=30", "fail=30"}) {
    CAPTURE(mistake);
    Program job(program, {"--nproc-per-node=3", "--min-ranks=2", "steps=60", "pause=1", mistake});
    const Result result = job.wait();
    support::check_ended(result, 0, {"worker 1 was lost: exit code 1"});
    CHECK(ends(result.output).size() == 2);
  }
}

TEST_CASE("the launcher names the error of the worker with which the job ends") {
  for (const auto& [mistake, text] :
       {std::pair{"throw=30", "a mistake of worker 1 at step 30"}, std::pair{"torn=30", "half a step"},
        std::pair{"fail=30", "commit() threw, so that this worker's state is torn: rank 0 on host elsewhere"},
        std::pair{"swallow=30", "commit() threw, and the function of train() went on"}}) {
    const std::string wanted = mistake;
    CAPTURE(wanted);
    Program job(program, {"--nproc-per-node=2", "--min-ranks=2", "steps=60", "pause=1", mistake});
    const Result result = job.wait();
    CHECK(result.exit_code == 1);
    CHECK_MESSAGE(std::regex_search(result.error, std::regex("the job failed: rank \\d on host [^\n]* failed: ")),
                  result.error);
    // The worker's, the job's cause, and the loss.
    CHECK_MESSAGE(support::count_of(result.error, text) >= 3, result.error);
    CHECK_MESSAGE(result.error.find(std::string("worker 1 was lost: exit code 1: ") + text) != std::string::npos,
                  result.error);
    CHECK(result.error.find("its process ended") == std::string::npos);
  }
}

TEST_CASE("what the function returns after the end of the job is the job's exit code") {
  Program job(program, {"--nproc-per-node=2", "--min-ranks=1", "steps=20", "pause=1", "return=3"});
  const Result result = job.wait();
  CHECK_MESSAGE(result.exit_code == 3, result.error);
}

TEST_CASE("a call of dtrain inside commit is refused") {
  Program job(program, {"--nproc-per-node=2", "--min-ranks=1", "steps=60", "pause=1", "call=10"});
  const Result result = job.wait();
  CHECK(result.error.find("a call of dtrain was made in commit()") != std::string::npos);
  CHECK(result.exit_code == 0);
}

TEST_CASE("fewer workers than --min-ranks end the job with the first cause, where none will come") {
  Program job(program, {"--nproc-per-node=2", "--min-ranks=2", "steps=1000", "log"});
  REQUIRE(job.wait_for("commit 20 attempt 1 size 2"));
  REQUIRE(::kill(support::process_of_worker(job.output(), 1), SIGKILL) == 0);
  const Result result = job.wait();
  support::check_ended(result, 128 + SIGKILL, {"worker 1 was lost: killed by signal 9 (SIGKILL)"});
}

TEST_CASE("a signal to the launcher ends an elastic job") {
  Program job(program, {"--nproc-per-node=2", "--min-ranks=1", "--max-restarts=5", "steps=100000", "log"});
  REQUIRE(job.wait_for("commit 20 attempt 1 size 2"));
  job.signal(SIGTERM);
  CHECK(job.wait().exit_code == 128 + SIGTERM);
}

TEST_CASE("an elastic job ends, although a worker that was left out is stopped for ever") {
  Program job(program, {"--nproc-per-node=3", "--min-ranks=1", "steps=500", "log"}, {{"DTRAIN_LIVENESS_SECONDS", "1"}});
  REQUIRE(job.wait_for("commit 20 attempt 1 size 3"));
  REQUIRE(::kill(support::process_of_worker(job.output(), 1), SIGSTOP) == 0);
  const Result result = job.wait(support::soon(std::chrono::seconds(60)));
  support::check_ended(result, 0,
                       {"was no rank at the end of the job, and had not ended 10.0 s later, and is killed by its "
                        "launcher\n",
                        "1 worker was lost in this job:",
                        "worker 1 was lost: its launcher killed it, because it was no rank at the end"});
  CHECK(ends(result.output).size() == 2);
}

TEST_CASE("a worker's exit code 2 before the first commit ends the job, and another one does not") {
  Program usage(program, {"--nproc-per-node=2", "--min-ranks=1", "--max-restarts=5", "steps=1000", "exit=2"});
  const Result refused = usage.wait();
  support::check_ended(refused, 2, {"exit code 2"});

  Program crash(program, {"--nproc-per-node=2", "--min-ranks=1", "--max-restarts=1", "steps=100", "exit=3"});
  const Result result = crash.wait();
  CHECK_MESSAGE(result.exit_code == 0, result.error);
  CHECK(ends(result.output).size() == 1);
}
