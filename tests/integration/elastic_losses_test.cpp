// ctest: TIMEOUT 180
// What the launcher of an elastic job says of lost workers, and of those that it kills itself or cannot start.

#include <cstdlib>

#include "integration/prelude.hpp"
#include "support/gate.hpp"
#include "support/worker_process.hpp"

namespace {

const std::string training = std::string(DTRAIN_TEST_PROGRAMS_DIR) + "/elastic_training";
const Program::Variables impatient{{"DTRAIN_LIVENESS_SECONDS", "1"}, {"DTRAIN_TIMEOUT_SECONDS", "5"}};

/// The process that the job has in the place of worker 1 after `earlier` others.
pid_t next_worker_1(Program& program, int earlier) {
  const auto count = [&] { return support::count_of(program.output(), "worker 1 is process "); };
  const dtrain::Deadline deadline = support::soon();
  while (static_cast<int>(count()) <= earlier && !deadline.passed()) {
    static_cast<void>(program.wait_for("no such line", dtrain::Deadline::after(std::chrono::milliseconds(5))));
  }
  REQUIRE(static_cast<int>(count()) > earlier);
  return support::process_of_worker(program.output(), 1);
}

/// A control group whose processes have little memory together.
class MemoryGroup {
 public:
  MemoryGroup() {
    for (const std::string parent : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
      folder_ = parent + "/dtrain-" + new_mark();
      std::error_code failed;
      if (!std::filesystem::is_directory(parent) || !std::filesystem::create_directory(folder_, failed)) continue;
      const bool is_first_version = std::filesystem::exists(folder_ + "/memory.limit_in_bytes");
      const std::string limit = folder_ + (is_first_version ? "/memory.limit_in_bytes" : "/memory.max");
      is_made = std::filesystem::exists(limit) && write(limit, "120M");
      static_cast<void>(write(folder_ + "/memory.swap.max", "0"));
      if (is_made) return;
      std::filesystem::remove(folder_, failed);
    }
  }
  ~MemoryGroup() {
    const auto remove = [this] { return !is_made || ::rmdir(folder_.c_str()) == 0; };
    static_cast<void>(support::holds_soon(remove));  // the last process may not have ended yet
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  /// The words that run a program in the group, in front of it.
  std::vector<std::string> command() const {
    return {"-c", "echo $$ > " + folder_ + "/cgroup.procs && exec \"$@\"", "sh"};
  }

  bool is_made = false;

 private:
  static bool write(const std::string& path, const std::string& text) {
    std::ofstream file(path);
    file << text << std::flush;
    return file.good();
  }

  std::string folder_;
};

}  // namespace

TEST_CASE("a worker that was silent for long is killed, with a word before and in the list of losses, and replaced") {
  Program job(training, {"--nproc-per-node=3", "--min-ranks=1", "--max-restarts=5", "steps=1000000", "log"}, impatient);
  REQUIRE(job.wait_for("commit 20 attempt 1 size 3"));
  const pid_t stopped = support::process_of_worker(job.output(), 1);
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  CHECK(job.wait_for("worker 1 (process " + std::to_string(stopped) +
                     ") was silent for more than 5.0 s, and is killed by its launcher, so that another one takes its "
                     "place"));
  CHECK(next_worker_1(job, 1) != stopped);
  job.signal(SIGTERM);
  support::check_ended(job.wait(), 128 + SIGTERM,
                       {"1 worker was lost in this job:",
                        "    worker 1 was lost: its launcher killed it, because it was silent for more than 5.0 s; "
                        "another one starts in its place"});
}

TEST_CASE("a silent worker is not killed while nobody else has the state, and the job goes on when it comes back") {
  Program job(training, {"--nproc-per-node=2", "--min-ranks=1", "--max-restarts=9", "steps=1000000", "log"}, impatient);
  REQUIRE(job.wait_for("commit 20 attempt 1 size 2"));
  const pid_t stopped = support::process_of_worker(job.output(), 0);
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  REQUIRE(job.wait_for(" size 1 digest"));  // worker 1 goes on alone
  // Starts of newcomers, after 0, 1, 2 and 4 s, let more time pass than that after which a worker is killed that the
  // job can spare; and while one is planned, the job waits.
  for (int earlier = 0; earlier < 4; ++earlier) {
    REQUIRE(::kill(next_worker_1(job, earlier), SIGKILL) == 0);
  }
  static_cast<void>(next_worker_1(job, 4));
  CHECK(support::state_of(stopped) == 'T');
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  CHECK(job.wait_for(" size 2 digest"));
  job.signal(SIGTERM);
  const Result result = job.wait();
  CHECK(result.exit_code == 128 + SIGTERM);
  CHECK_CONTAINS(result.error, "another one starts in its place in 4 s", "4 workers were lost in this job:");
  CHECK(!contains(result.error, "killed by its launcher"));
}

TEST_CASE("a worker whose memory the control group does not have is lost, and the loss says so") {
  const MemoryGroup group;
  if (!dtrain_test::needs(group.is_made, "a control group with a limit of memory cannot be made here")) return;
  std::vector<std::string> words = group.command();
  for (const char* const word : {training.c_str(), "--nproc-per-node=2", "--min-ranks=1", "steps=60", "eat=30"}) {
    words.push_back(word);
  }
  Program job("/bin/sh", words);
  support::check_ended(
      job.wait(), 0,
      {"worker 1 was lost: killed by signal 9 (SIGKILL) (out of memory: the cgroup's limit is 120 MiB)",
       "1 worker was lost in this job:"});
}

TEST_CASE("a loss after the last restart says why nobody takes the worker's place") {
  Program job(training, {"--nproc-per-node=2", "--min-ranks=1", "--max-restarts=1", "steps=1000000", "exit=3"});
  CHECK(job.wait_for("worker 1 was lost: exit code 3; another one starts in its place\n"));
  CHECK(job.wait_for("worker 1 was lost: exit code 3; no other one starts, because --max-restarts is used up\n"));
  job.signal(SIGTERM);
  support::check_ended(job.wait(), 128 + SIGTERM, {"2 workers were lost in this job:"});
  Program never(training, {"--nproc-per-node=2", "--min-ranks=1", "steps=1000000", "exit=3"});
  CHECK(never.wait_for("worker 1 was lost: exit code 3; no other one starts without --max-restarts\n"));
}

TEST_CASE("a start that fails when no restart is left leaves the place empty, and the others go on") {
  const TemporaryDirectory directory;
  const std::string logs = directory.path + "/logs";
  Program job(training, {"--nproc-per-node=3", "--min-ranks=1", "--max-restarts=1", "--log-dir=" + logs, "log",
                         "steps=100000", "until=" + directory.path + "/end"});
  REQUIRE(job.wait_for("commit 20 attempt 1 size 3"));
  std::filesystem::rename(logs, logs + "-away");
  REQUIRE(::kill(support::process_of_worker(job.output(), 1), SIGKILL) == 0);
  CHECK(job.wait_for("starting worker 1 failed: "));
  CHECK(job.wait_for(" size 2 digest"));
  std::ofstream(directory.path + "/end") << "now";
  const Result result = job.wait();
  support::check_ended(result, 0, {"1 worker was lost in this job:", "; its place stays empty"});
  CHECK(support::count_of(result.error, "its place stays empty") == 2);  // at once, and in the list
}

TEST_CASE("a start that fails is tried again while restarts are left") {
  const TemporaryDirectory directory;
  const std::string logs = directory.path + "/logs";
  Program job(training,
              {"--nproc-per-node=2", "--min-ranks=1", "--max-restarts=9", "--log-dir=" + logs, "log", "steps=1000000"});
  REQUIRE(job.wait_for("commit 20 attempt 1 size 2"));
  std::filesystem::rename(logs, logs + "-away");
  REQUIRE(::kill(support::process_of_worker(job.output(), 1), SIGKILL) == 0);
  REQUIRE(job.wait_for("this is tried again in 1 s"));
  std::filesystem::rename(logs + "-away", logs);
  static_cast<void>(next_worker_1(job, 1));
  job.signal(SIGTERM);
  CHECK(job.wait().exit_code == 128 + SIGTERM);
}
