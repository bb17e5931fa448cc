// Signals to elastic jobs: to one worker, and to the launcher at moments that are awkward for it.

#include "integration/prelude.hpp"
#include "support/gate.hpp"
#include "support/worker_process.hpp"

namespace {

const std::string training = std::string(DTRAIN_TEST_PROGRAMS_DIR) + "/elastic_training";

/// A job of three workers that trains until it is ended, with a word by which its processes are found.
struct LongJob {
  /// @param word of the program's command line @param line that the job prints before the constructor returns
  explicit LongJob(const std::string& word = "steps=1000000", const std::string& line = "commit 20 attempt 1 size 3")
      : mark(new_mark()),
        // UCX of Open MPI 5 makes SIGHUP switch its debug mode on, unless a variable says otherwise.
        program(training, {"--nproc-per-node=3", "--min-ranks=1", "--max-restarts=9", word, "log", mark},
                {{"DTRAIN_GRACE_SECONDS", "2"}, {"UCX_DEBUG_SIGNO", "0"}}) {
    REQUIRE(program.wait_for(line));
  }
  /// Ends the launcher by a signal: it is to exit so, and to leave no process. @returns what the launcher wrote to
  /// stderr
  std::string check_end(int signal) {
    CAPTURE(signal);
    program.signal(signal);
    const Result result = program.wait();
    CHECK_MESSAGE(result.exit_code == 128 + signal, result.error);
    CHECK(support::all_gone(mark, support::soon()));
    return result.error;
  }

  std::string mark;
  Program program;
};

/// Whether all of a process's threads are stopped: a signal that ends it is pending until it continues.
bool is_stopped(pid_t process) {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
    std::ifstream file(thread.path() / "stat");
    const std::string status{std::istreambuf_iterator<char>(file), {}};
    if (status.find(") T") == std::string::npos) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a worker that is ended by SIGTERM alone is replaced, and the others go on") {
  LongJob job("steps=400");
  REQUIRE(::kill(support::process_of_worker(job.program.output(), 1), SIGTERM) == 0);
  const Result result = job.program.wait(support::soon(std::chrono::seconds(60)));
  support::check_ended(result, 0,
                       {"worker 1 was lost: killed by signal 15 (SIGTERM); another one starts in its place"});
  std::set<std::string> ends;
  std::size_t finished = 0;
  for (std::size_t at = result.output.find(" finished as rank"); at != std::string::npos;
       at = result.output.find(" finished as rank", at + 1), ++finished) {
    const std::size_t digest = result.output.find(": ", at);
    ends.insert(result.output.substr(digest, result.output.find('\n', digest) - digest));
  }
  CHECK_MESSAGE(finished == 3, result.output << result.error);
  CHECK(ends.size() == 1);
}

TEST_CASE("a worker that exits with 143 says that its machine goes away: nobody is started in its place") {
  Program program(training, {"--nproc-per-node=2", "--min-ranks=1", "--max-restarts=5", "steps=60", "exit=143"});
  const Result result = program.wait();
  support::check_ended(
      result, 0,
      {"worker 1 was lost: exit code 143; it is not replaced, because that exit code says that its machine goes away"});
}

TEST_CASE("SIGTERM and SIGINT to the launcher end an elastic job, and leave no process") {
  for (const int signal : {SIGTERM, SIGINT}) {
    LongJob job;
    job.check_end(signal);
  }
}

TEST_CASE("SIGHUP and SIGQUIT to the launcher end an elastic job before and after its first commit") {
  for (const int signal : {SIGHUP, SIGQUIT}) {
    const auto check = [signal](LongJob&& job) {
      const std::string error = job.check_end(signal);
      CHECK_CONTAINS(error, signal == SIGHUP ? "SIGHUP was forwarded to the workers" : "SIGQUIT was forwarded");
      CHECK_MESSAGE(!contains(error, "another one starts"), error);
    };
    check(LongJob("pause=60000", "worker 2 is rank"));  // a step of a minute
    check(LongJob());
  }
}

TEST_CASE("SIGUSR1 and SIGUSR2 to the launcher end no worker that does not handle them, and the launcher says so") {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    LongJob job;
    job.program.signal(signal);
    CHECK(job.program.wait_for(std::string(signal == SIGUSR1 ? "SIGUSR1" : "SIGUSR2") +
                               " came to the launcher, and is not forwarded to workers 0-2"));
    CHECK(job.program.wait_for("commit 40 attempt 1 size 3"));
    const std::string error = job.check_end(SIGTERM);
    CHECK_MESSAGE(!contains(error, "killed by signal"), error);
    CHECK_MESSAGE(!contains(error, "lost in this job"), error);
  }
}

TEST_CASE("SIGUSR1 to the launcher reaches each worker that handles it or blocks it") {
  LongJob handling("handle=10");
  handling.program.signal(SIGUSR1);
  for (const char* const worker : {"0", "1", "2"}) {
    CHECK(handling.program.wait_for(std::string("worker ") + worker + " got a signal"));
  }
  const std::string error = handling.check_end(SIGTERM);
  CHECK_MESSAGE(!contains(error, "not forwarded"), error);
}

TEST_CASE("a launcher that was started with SIGTERM blocked, as by a Java program, has workers that leave at it") {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  REQUIRE(::pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);
  LongJob job;
  REQUIRE(::pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
  const std::string error = job.check_end(SIGTERM);
  CHECK_CONTAINS(error, "leaves the job, because it got SIGTERM");
  CHECK_MESSAGE(!contains(error, "the launcher kills"), error);
}

TEST_CASE("a signal to the launcher ends the job while a worker's replacement waits to be started") {
  LongJob job;
  const pid_t first = support::process_of_worker(job.program.output(), 1);
  REQUIRE(::kill(first, SIGKILL) == 0);
  const dtrain::Deadline deadline = support::soon();
  while (support::process_of_worker(job.program.output(), 1) == first && !deadline.passed()) {
    static_cast<void>(job.program.wait_for("no such line", dtrain::Deadline::after(std::chrono::milliseconds(5))));
  }
  const pid_t second = support::process_of_worker(job.program.output(), 1);
  REQUIRE(second != first);
  REQUIRE(::kill(second, SIGKILL) == 0);
  REQUIRE(job.program.wait_for("another one starts in its place in 1 s"));
  job.check_end(SIGTERM);
}

TEST_CASE(
    "a signal to the launcher ends the job, although a worker is stopped, which the launcher says that it kills") {
  LongJob job;
  const pid_t stopped = support::process_of_worker(job.program.output(), 2);
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  REQUIRE(support::holds_soon([&] { return is_stopped(stopped); }));
  CHECK_CONTAINS(job.check_end(SIGINT), "the launcher kills what has not ended after SIGINT: worker 2\n");
}
