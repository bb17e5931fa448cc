// ctest: TIMEOUT 180
// ctest: LABELS no-tsan
// Elastic jobs whose processes the test starts itself, as Kubernetes starts those of an Indexed Job. (Gloo's library is
// not instrumented.)

#include <arpa/inet.h>
#include <sys/socket.h>

#include <deque>
#include <regex>

#include "dtrain/core/process/descriptor.hpp"
#include "integration/prelude.hpp"
#include "support/cutting_proxy.hpp"
#include "support/gate.hpp"

namespace {

const std::string training = std::string(DTRAIN_TEST_PROGRAMS_DIR) + "/elastic_processes";
constexpr std::chrono::seconds minute(60);

/// The processes of one job.
class Job {
 public:
  explicit Job(std::vector<std::string> words, std::string sizes = "1:3")
      : words_(std::move(words)), sizes_(std::move(sizes)), port_(std::to_string(support::free_port())) {}

  /// Starts another process. @returns a reference that stays valid
  Program& start(int index, const Program::Variables& more = {}) { return start(training, words_, index, more); }
  /// Starts a process that is PID 1 of a namespace, as a container's. @returns the process that waits for it
  Program& start_as_pid_1(int index) {
    std::vector<std::string> words{"unshare", "--pid", "--fork", "--kill-child", training};
    words.insert(words.end(), words_.begin(), words_.end());
    return start("/usr/bin/env", std::move(words), index, {});
  }
  void start_three() {
    for (int index = 0; index < 3; ++index)
      start(index);
    for (Program& each : processes_)
      REQUIRE_MESSAGE(each.wait_for("commit 10 size 3"), each.wait().error);
  }
  Program& operator[](std::size_t number) { return processes_[number]; }

  const std::string& port() const { return port_; }

 private:
  Program& start(const std::string& path, std::vector<std::string> words, int index, const Program::Variables& more) {
    const std::string number = std::to_string(index);
    Program::Variables variables{{"DTRAIN_WORLD_SIZE", sizes_},   {"MASTER_ADDR", "127.0.0.1"},
                                 {"MASTER_PORT", port_},          {"JOB_COMPLETION_INDEX", number},
                                 {"DTRAIN_TEST_INDEX", number},   {"DTRAIN_TIMEOUT_SECONDS", "20"},
                                 {"DTRAIN_LIVENESS_SECONDS", "2"}};
    for (const auto& [name, value] : more)
      variables[name] = value;
    return processes_.emplace_back(path, std::move(words), variables);
  }

  std::vector<std::string> words_;
  std::string sizes_;
  std::string port_;
  std::deque<Program> processes_;
};

/// The digest of the weights with which a process has finished, and the number of steps.
std::string end_of(const std::string& output) {
  std::smatch found;
  return std::regex_search(output, found, std::regex("finished as rank \\d+ of \\d+: (\\w+ after \\d+)")) ? found[1]
                                                                                                          : output;
}

/// Whether the process has a handler for the signal.
bool handles(pid_t process, int signal) {
  const std::string status = content("/proc/" + std::to_string(process) + "/status");
  const std::size_t at = status.find("SigCgt:");
  return at != std::string::npos && (std::stoull(status.substr(at + 7), nullptr, 16) >> (signal - 1) & 1) != 0;
}

}  // namespace

TEST_CASE("a process of an elastic job is killed, the others go on, and another one of its index becomes a rank") {
  Job job({"steps=1500"});
  job.start_three();
  job[1].signal(SIGKILL);
  CHECK(job[0].wait_for("size 2"));
  Program& next = job.start(1);
  CHECK(next.wait_for(" of 3 from step"));
  std::set<std::string> ends;
  for (Program* const each : {&job[0], &job[2], &next}) {
    const Result result = each->wait(support::soon(minute));
    CHECK_MESSAGE(result.exit_code == 0, result.error);
    ends.insert(end_of(result.output));
  }
  CHECK(ends.size() == 1);
  CHECK_CONTAINS(*ends.begin(), " after 1500");
}

TEST_CASE("SIGTERM makes a worker leave at its next call with exit code 143, and nobody waits for it") {
  for (const char* const way : {"run", "init"}) {
    CAPTURE(way);
    Job job({"steps=100000", way});
    job.start_three();
    job[1].signal(SIGTERM);
    CHECK(job[2].wait_for("size 2"));
    const Result left = job[1].wait();
    CHECK(left.exit_code == 143);
    CHECK_CONTAINS(left.output + left.error,
                   way == std::string("run") ? "leaves the job, because it got SIGTERM" : "ended with 143");
  }
}

TEST_CASE("SIGTERM makes a worker leave at once that waits to become a rank") {
  Job job({"steps=100000"}, "1:2");
  job.start(0);
  job.start(1);
  REQUIRE(job[0].wait_for("commit 10 size 2"));
  Program& waiting = job.start(2);
  REQUIRE(waiting.wait_for("begins"));
  REQUIRE(support::holds_soon([&] { return handles(waiting.process(), SIGTERM); }));
  const support::Stopwatch watch;
  waiting.signal(SIGTERM);
  support::check_ended(waiting.wait(), 143, {"leaves the job, because it got SIGTERM"});
  CHECK(watch.elapsed() < std::chrono::milliseconds(4500));  // after 5 s it would have ended without leaving
  CHECK(job[0].wait_for("commit 400 size 2"));
}

TEST_CASE("a worker that gets SIGTERM and makes no call of dtrain ends after 5 s, or by a second SIGTERM") {
  for (const bool twice : {false, true}) {
    CAPTURE(twice);
    Job job({"steps=1000", "stuck=20"}, "1:1");
    job.start(0);
    REQUIRE(job[0].wait_for("is stuck"));
    const support::Stopwatch watch;
    job[0].signal(SIGTERM);
    if (twice) {
      REQUIRE(support::holds_soon([&] { return !handles(job[0].process(), SIGTERM); }));
      job[0].signal(SIGTERM);
    }
    const Result result = job[0].wait();
    CHECK(result.exit_code == 143);
    CHECK(contains(result.error, "has not left its job in 5 s") != twice);
    CHECK((watch.elapsed() < std::chrono::milliseconds(4500)) == twice);
  }
}

TEST_CASE("a program's own handler of SIGTERM stays, and a process that it forked ends by the signal") {
  Job job({"steps=100000", "handler"}, "1:1");
  job.start(0);
  REQUIRE(job[0].wait_for("commit 10"));
  job[0].signal(SIGTERM);
  REQUIRE(job[0].wait_for("handled"));
  CHECK(job[0].wait_for("commit 100 "));

  Job with_child({"steps=100000", "fork"}, "1:1");
  with_child.start(0);
  REQUIRE(with_child[0].wait_for("commit 10"));
  const std::string& output = with_child[0].output();
  const std::size_t at = output.find("child ");
  REQUIRE(at != std::string::npos);
  REQUIRE(::kill(static_cast<pid_t>(std::stol(output.substr(at + 6))), SIGTERM) == 0);
  CHECK(with_child[0].wait_for("child ended by signal 15"));
}

TEST_CASE(
    "a process that has inherited that SIGTERM is blocked leaves at it, and one that blocks it itself gets none") {
  Job job({"steps=100000"}, "1:1");
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  REQUIRE(::pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);
  job.start(0);
  REQUIRE(::pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
  REQUIRE(job[0].wait_for("commit 10"));
  job[0].signal(SIGTERM);
  support::check_ended(job[0].wait(), 143, {"leaves the job, because it got SIGTERM"});

  Job waiting({"steps=100000", "wait"}, "1:1");
  waiting.start(0);
  REQUIRE(waiting[0].wait_for("commit 10"));
  waiting[0].signal(SIGTERM);
  CHECK(waiting[0].wait_for("waited for SIGTERM"));
  CHECK(waiting[0].wait_for("commit 100 "));
}

TEST_CASE("the job ends with the process of index 0: the others end with 75") {
  for (const int signal : {SIGKILL, SIGTERM}) {
    CAPTURE(signal);
    Job job({"steps=100000"});
    job.start_three();
    job[0].signal(signal);
    for (const std::size_t other : {1U, 2U}) {
      support::check_ended(job[other].wait(), 75,
                           {signal == SIGKILL ? "its store does not answer any more" : "the process with index 0"});
    }
    CHECK(job[0].wait().exit_code == 128 + signal);
  }
}

TEST_CASE("a second process of index 0 waits for the end of the first, and hosts the store of another job") {
  Job job({"steps=100000"});
  job.start_three();
  Program& second = job.start(0, {{"DTRAIN_LIVENESS_SECONDS", "5"}});
  REQUIRE(second.wait_for("waits until that one has ended"));
  CHECK(job[0].wait_for("commit 200 size 3"));
  job[0].signal(SIGKILL);
  Program& third = job.start(1);
  Program& fourth = job.start(2);
  CHECK(second.wait_for("of 3 from step 0"));
  for (const std::size_t other : {1U, 2U}) {
    CHECK(job[other].wait().exit_code == 75);
  }
  CHECK(third.wait_for("of 3 from step 0"));
  CHECK(fourth.wait_for("of 3 from step 0"));
}

TEST_CASE("the job starts again where a child of the process of index 0 outlives it") {
  Job job({"steps=100000", "orphan"}, "1:1");
  job.start(0);
  REQUIRE(job[0].wait_for("commit 10"));
  const std::string& output = job[0].output();
  const auto child = static_cast<pid_t>(std::stol(output.substr(output.find("child ") + 6)));
  job[0].signal(SIGKILL);
  CHECK(::kill(child, 0) == 0);
  job.start(0);
  CHECK_MESSAGE(job[1].wait_for("commit 10"), job[1].wait().error);
  static_cast<void>(::kill(child, SIGKILL));
}

TEST_CASE("a process of index 0 says what keeps its port where that says nothing") {
  Job job({"steps=100000"}, "1:1");
  const dtrain::Descriptor silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(job.port())));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(silent.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(silent.get(), 8) == 0);
  job.start(0, {{"DTRAIN_TIMEOUT_SECONDS", "1"}});
  support::check_ended(job[0].wait(), 1,
                       {"a process takes connections in silence at 127.0.0.1:" + job.port(),
                        "it is a store whose process is stopped, another program, or a child of the process that had "
                        "index 0 before, which has kept its port: end it (ss -ltnp 'sport = :" +
                            job.port() + "' names it)"});
}

TEST_CASE("a process of index 0 whose port stays in use ends, and says so") {
  Job job({"steps=100000"}, "1:1");
  job.start(0);
  REQUIRE(job[0].wait_for("commit 10"));
  job.start(0, {{"DTRAIN_TIMEOUT_SECONDS", "1"}});
  support::check_ended(job[1].wait(), 1, {"another store answers at 127.0.0.1:" + job.port()});
}

TEST_CASE("a process with another range, or of a program that takes a group, is refused with exit code 2") {
  Job job({"steps=100000"}, "1:1");
  job.start(0);
  REQUIRE(job[0].wait_for("commit 10"));
  job.start(1, {{"DTRAIN_WORLD_SIZE", "1:4"}});
  support::check_ended(job[1].wait(), 2, {"it has DTRAIN_WORLD_SIZE=1:4", "have DTRAIN_WORLD_SIZE=1:1"});

  Job of_groups({"group"}, "1:2");
  of_groups.start(0);
  support::check_ended(of_groups[0].wait(), 2, {"this program takes a group of fixed size"});
}

TEST_CASE("init_elastic trains as run does: errors leave it, and the others go on") {
  Job job({"steps=300", "init"});
  job.start(0);
  job.start(1);
  job.start(2);
  for (const std::size_t index : {0U, 1U, 2U}) {
    const Result result = job[index].wait(support::soon(minute));
    CHECK_MESSAGE(result.exit_code == 0, result.error);
    CHECK_CONTAINS(result.output, " after 300 steps");
  }

  Job failing({"steps=100000", "init", "throw=30"}, "1:1");
  failing.start(0);
  support::check_ended(failing[0].wait(), 1, {"a mistake"});
}

TEST_CASE("torchrun's processes of an elastic program are a job of fixed size, which a loss ends") {
  for (const bool is_killed : {false, true}) {
    CAPTURE(is_killed);
    Job job({is_killed ? "steps=100000" : "steps=50"});
    for (const char* const rank : {"0", "1"}) {
      job.start(std::stoi(rank), {{"DTRAIN_WORLD_SIZE", ""},
                                  {"JOB_COMPLETION_INDEX", ""},
                                  {"RANK", rank},
                                  {"WORLD_SIZE", "2"},
                                  {"LOCAL_RANK", rank},
                                  {"LOCAL_WORLD_SIZE", "2"},
                                  {"GROUP_RANK", "0"},
                                  {"GROUP_WORLD_SIZE", "1"},
                                  {"TORCHELASTIC_RUN_ID", "none"}});
    }
    if (is_killed) {
      REQUIRE(job[0].wait_for("commit 10 size 2"));
      job[1].signal(SIGKILL);
    }
    CHECK(job[0].wait().exit_code == (is_killed ? 75 : 0));
    CHECK(job[1].wait().exit_code == (is_killed ? 137 : 0));
  }
}

TEST_CASE("SIGTERM ends a worker that is PID 1 with 143, also outside of train") {
  const Result allowed = support::run("/usr/bin/env", {"unshare", "--pid", "--fork", "true"});
  if (allowed.exit_code != 0) return dtrain_test::skip("a PID namespace cannot be made here: " + allowed.error);
  Job job({"steps=100000"}, "1:1");
  Program& inside = job.start_as_pid_1(0);
  REQUIRE(inside.wait_for("commit 10"));
  Program& outside = job.start_as_pid_1(0);
  REQUIRE(outside.wait_for("waits until that one has ended"));
  const auto end = [](Program& each) {
    const std::vector<pid_t> first = support::children_of(each.process());
    REQUIRE(first.size() == 1);
    REQUIRE(::kill(first[0], SIGTERM) == 0);
    return each.wait();
  };
  support::check_ended(end(outside), 143, {"has not left its job in 5 s"});
  support::check_ended(end(inside), 143, {"leaves the job, because it got SIGTERM"});
}

TEST_CASE("a process that a body forked returns from it, and neither the store nor a worker is disturbed") {
  for (const char* const way : {"run", "init"}) {
    CAPTURE(way);
    Job job({"steps=600", "child", way});  // longer than DTRAIN_LIVENESS_SECONDS
    job.start_three();
    for (const std::size_t index : {0U, 1U, 2U}) {
      const Result result = job[index].wait(support::soon(minute));
      CHECK_MESSAGE(result.exit_code == 0, result.error);
      CHECK_CONTAINS(result.output, "child returned", " of 3: ");
    }
  }
}

TEST_CASE("a store that is not at MASTER_ADDR says where it is") {
  Job job({"steps=100000"}, "1:1");
  job.start(0, {{"MASTER_ADDR", "192.0.2.1"}, {"DTRAIN_SECRET", std::string(64, 'a')}});
  CHECK(job[0].wait_for("MASTER_ADDR is 192.0.2.1, which is no address of its host"));
  CHECK(job[0].wait_for("commit 10 size 1"));
}

TEST_CASE("index 0 opens its store behind a program that accepts connections for it") {
  Job job({"steps=100000"}, "1:2");
  const auto port = static_cast<std::uint16_t>(std::stoi(job.port()));
  const dtrain_test::CuttingProxy forwarder(port, port, 2);
  for (const int index : {0, 1}) {
    job.start(index, {{"MASTER_ADDR", "127.0.0.2"}, {"DTRAIN_INTERFACE", "127.0.0.1"}});
  }
  CHECK_MESSAGE(job[0].wait_for("commit 10 size 2"), job[0].wait().error);
  CHECK(forwarder.accepted() > 0);
}

TEST_CASE("a process has one elastic job, and says so when it begins another one") {
  Job job({"steps=10", "init", "again"}, "1:1");
  job.start(0);
  support::check_ended(job[0].wait(), 1, {"this process was a worker of an elastic job before"});
}

TEST_CASE("SIGTERM makes a worker leave at once that does not reach the store") {
  Job job({"steps=10"});
  Program& alone = job.start(1);
  REQUIRE(alone.wait_for("begins"));
  REQUIRE(support::holds_soon([&] { return handles(alone.process(), SIGTERM); }));
  const support::Stopwatch watch;
  alone.signal(SIGTERM);
  support::check_ended(alone.wait(), 143, {"leaves the job, because it got SIGTERM"});
  CHECK(watch.elapsed() < std::chrono::milliseconds(4500));  // after 5 s it would have ended without leaving
}

TEST_CASE("a process with another secret ends with exit code 1, as in a job of fixed size") {
  Job job({"steps=100000"}, "1:2");
  job.start(0, {{"DTRAIN_SECRET", std::string(64, 'a')}});
  job.start(1, {{"DTRAIN_SECRET", std::string(64, 'b')}});
  support::check_ended(job[1].wait(), 1, {"its secret is not the job's"});
}
